-- +goose Up
-- The outbox, in six files: relays, counts, keys, tasks, claims, runs.
-- Versions 1 to 18 were before the first release.
-- Needs PostgreSQL 14 or newer. With psql: psql -v ON_ERROR_STOP=1 -1 -f 00019_relays.sql
--
-- This file: the versions of the schema, relays and their maintenance, schedules, limits of task
-- types, operators' actions.

-- +goose StatementBegin
DO $$
BEGIN
  IF current_setting('server_encoding') <> 'UTF8' THEN
    RAISE EXCEPTION 'the database % has the encoding %, but tasks need UTF8',
      current_database(), current_setting('server_encoding')
      USING ERRCODE = 'feature_not_supported',
            HINT = 'Create a database with TEMPLATE template0 ENCODING ''UTF8'', '
                   'and move the data there.';
  END IF;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
DO $$
BEGIN
  IF to_regnamespace('outbox') IS NULL THEN
    CREATE SCHEMA outbox;
  END IF;
END
$$;
-- +goose StatementEnd

-- One row for each migration that was applied.
CREATE TABLE IF NOT EXISTS outbox.migration (
  version    integer     PRIMARY KEY CHECK (version > 0),
  applied_at timestamptz NOT NULL DEFAULT now()
);

-- +goose StatementBegin
DO $$
BEGIN
  IF EXISTS (SELECT 1 FROM outbox.migration WHERE version < 19) THEN
    RAISE EXCEPTION 'the schema % is from before the first release, and cannot be migrated',
      'outbox'
      USING ERRCODE = 'feature_not_supported',
            HINT = 'Drop the schema, with the tasks in it, and start anew.';
  END IF;
END
$$;
-- +goose StatementEnd

-- One row for each relay process; it is alive until alive_until.
CREATE TABLE IF NOT EXISTS outbox.relay (
  relay_id    uuid        PRIMARY KEY,
  host        text        NOT NULL,
  pid         integer     NOT NULL,
  started_at  timestamptz NOT NULL DEFAULT now(),
  alive_until timestamptz NOT NULL,
  task_types  text[]      NOT NULL,
  workers     integer,
  connections integer
) WITH (
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100,
  autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN outbox.relay.workers     IS 'handler calls at once; NULL: not known';
COMMENT ON COLUMN outbox.relay.connections IS 'of its pool; NULL: not known, or any number';

-- The second, since 1970 by this server's clock, until which some idle relay asks to be woken.
CREATE SEQUENCE IF NOT EXISTS outbox.wake AS bigint MINVALUE 0 START 0 NO CYCLE;

-- When each job of maintenance is due. The relay that gets its row runs it.
CREATE TABLE IF NOT EXISTS outbox.maintenance (
  job    text        PRIMARY KEY,
  due_at timestamptz NOT NULL DEFAULT now()
) WITH (
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100,
  autovacuum_vacuum_cost_delay = 0
);

-- One row for each schedule that a relay was started with. Relays that know it compute when it
-- fires from what is in the row. The row is locked while it fires.
CREATE TABLE IF NOT EXISTS outbox.schedule (
  name       text        PRIMARY KEY,
  next_at    timestamptz,
  last_at    timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  paused     boolean     NOT NULL DEFAULT false,
  catch_up   text        NOT NULL DEFAULT 'once',
  task_type  text        NOT NULL,
  payload    jsonb       NOT NULL,
  spec       text        NOT NULL DEFAULT '',
  timing     text        NOT NULL,
  definition text        NOT NULL,
  CONSTRAINT schedule_name_check
    CHECK (octet_length(name) BETWEEN 1 AND 128 AND name !~ '[[:cntrl:]]'),
  CONSTRAINT schedule_catch_up_check CHECK (catch_up IN ('once', 'all')),
  CONSTRAINT schedule_time_check
    CHECK (isfinite(next_at) AND next_at < '10000-01-01 00:00:00+00'
       AND isfinite(last_at) AND last_at < '10000-01-01 00:00:00+00')
) WITH (
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100,
  autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN outbox.schedule.next_at
  IS 'the next firing; NULL: it has ended, or its Next misbehaved';
COMMENT ON COLUMN outbox.schedule.last_at    IS 'the latest firing that enqueued a task';
COMMENT ON COLUMN outbox.schedule.payload
  IS 'as last registered, to be read: what is enqueued comes from the code of the relay that fires';
COMMENT ON COLUMN outbox.schedule.timing
  IS 'a hash of when it fires: when it changes, next_at is computed anew';
COMMENT ON COLUMN outbox.schedule.definition
  IS 'a hash of all of it: only relays that know this very schedule fire it';

-- A type has a row only if it was paused or is limited. A relay that starts with a limit writes it
-- here: the last one counts.
CREATE TABLE IF NOT EXISTS outbox.task_type (
  task_type   text    PRIMARY KEY,
  paused      boolean NOT NULL DEFAULT false,
  max_running integer,
  rate        integer,
  rate_per    bigint,
  CONSTRAINT task_type_name_check
    CHECK (octet_length(task_type) BETWEEN 1 AND 128 AND task_type !~ '[[:cntrl:]]'),
  CONSTRAINT task_type_max_running_check CHECK (max_running > 0),
  CONSTRAINT task_type_rate_check
    CHECK (rate > 0 AND rate_per > 0 AND (rate IS NULL) = (rate_per IS NULL))
);
COMMENT ON COLUMN outbox.task_type.paused      IS 'no relay claims its tasks';
COMMENT ON COLUMN outbox.task_type.max_running
  IS 'handler calls at once in all relays; NULL: any number';
COMMENT ON COLUMN outbox.task_type.rate
  IS 'tasks that may start in rate_per, in all relays; NULL: any number';
COMMENT ON COLUMN outbox.task_type.rate_per    IS 'microseconds';

-- A type with max_running has this many slots, numbered from 1. A slot is held by the transaction
-- that has it locked, or by the lease that it names, while its task has that token. So nothing has
-- to free it.
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

-- The token bucket of a type with a rate. It fills up with time: emptied_at is when it would have
-- been empty.
CREATE TABLE IF NOT EXISTS outbox.bucket (
  task_type  text        PRIMARY KEY,
  emptied_at timestamptz NOT NULL DEFAULT '-infinity'
) WITH (
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
  autovacuum_vacuum_cost_delay = 0
);

-- What was done by hand. A tool writes the row in the transaction of the action; nothing deletes
-- it.
CREATE TABLE IF NOT EXISTS outbox.audit (
  entry_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at       timestamptz NOT NULL DEFAULT now(),
  actor    text        NOT NULL,
  tool     text        NOT NULL,
  action   text        NOT NULL,
  target   text        NOT NULL DEFAULT '',
  count    bigint      NOT NULL DEFAULT 0,
  CONSTRAINT audit_actor_check  CHECK (octet_length(actor) BETWEEN 1 AND 256),
  CONSTRAINT audit_tool_check   CHECK (octet_length(tool) BETWEEN 1 AND 64),
  CONSTRAINT audit_action_check CHECK (octet_length(action) BETWEEN 1 AND 64),
  CONSTRAINT audit_target_check CHECK (octet_length(target) <= 1024),
  CONSTRAINT audit_count_check  CHECK (count >= 0)
);
COMMENT ON COLUMN outbox.audit.target
  IS 'a task type, a task id, a filter in words; never a payload';
COMMENT ON COLUMN outbox.audit.count  IS 'how many tasks it was about';

INSERT INTO outbox.migration (version) VALUES (19) ON CONFLICT DO NOTHING;
