-- +goose Up
-- What holds for a task type in all relays: paused, how many run at once, how many start in a while.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00005_limits.sql

-- A type has a row only if it was paused or is limited. A relay that starts with a limit writes it here: the last one counts.
CREATE TABLE IF NOT EXISTS outbox.task_type (
  task_type   text    PRIMARY KEY,
  paused      boolean NOT NULL DEFAULT false,
  max_running integer,
  rate        integer,
  rate_per    bigint,
  CONSTRAINT task_type_name_check        CHECK (octet_length(task_type) BETWEEN 1 AND 128 AND task_type !~ '[[:cntrl:]]'),
  CONSTRAINT task_type_max_running_check CHECK (max_running > 0),
  CONSTRAINT task_type_rate_check        CHECK (rate > 0 AND rate_per > 0 AND (rate IS NULL) = (rate_per IS NULL))
);
COMMENT ON COLUMN outbox.task_type.paused      IS 'no relay claims its tasks';
COMMENT ON COLUMN outbox.task_type.max_running IS 'handler calls at once in all relays; NULL: any number';
COMMENT ON COLUMN outbox.task_type.rate        IS 'tasks that may start in rate_per, in all relays; NULL: any number';
COMMENT ON COLUMN outbox.task_type.rate_per    IS 'microseconds';

-- A type with max_running has this many slots, numbered from 1. A slot is taken by the transaction that has it locked, or while
-- the lease that it names lasts: while its task has that token. So nothing has to free it.
CREATE TABLE IF NOT EXISTS outbox.slot (
  task_type   text    NOT NULL,
  slot        integer NOT NULL CHECK (slot > 0),
  task_id     bigint,
  lease_token uuid,
  PRIMARY KEY (task_type, slot),
  CONSTRAINT slot_lease_check CHECK ((task_id IS NULL) = (lease_token IS NULL))
) WITH (
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
  autovacuum_vacuum_cost_delay = 0
);

-- The token bucket of a type with a rate. It fills up with time: emptied_at is when it would have been empty.
CREATE TABLE IF NOT EXISTS outbox.bucket (
  task_type  text        PRIMARY KEY,
  emptied_at timestamptz NOT NULL DEFAULT '-infinity'
) WITH (
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
  autovacuum_vacuum_cost_delay = 0
);

INSERT INTO outbox.migration (version) VALUES (5) ON CONFLICT DO NOTHING;
