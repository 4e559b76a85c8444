-- +goose Up
-- The tables, indexes and sequence of the outbox. Needs PostgreSQL 14 or newer, and UTF8.
-- Functions, views, triggers and comments are beside it, as files of their present state.

-- +goose StatementBegin
DO $$
BEGIN
  IF current_setting('server_encoding') <> 'UTF8' THEN
    RAISE EXCEPTION 'the database % has the encoding %, but tasks need UTF8', current_database(),
      current_setting('server_encoding')
      USING ERRCODE = 'feature_not_supported',
            HINT = 'Create a database with TEMPLATE template0 ENCODING ''UTF8'', '
                   'and move the data there.';
  END IF;
  IF to_regnamespace('outbox') IS NULL THEN
    CREATE SCHEMA outbox;
  END IF;
END
$$;
-- +goose StatementEnd

-- One row for each migration that was applied.
CREATE TABLE IF NOT EXISTS outbox.migration (
  version        integer     PRIMARY KEY CHECK (version > 0),
  applied_at     timestamptz NOT NULL DEFAULT now(),
  oldest_version integer     CONSTRAINT migration_oldest_version_check
    CHECK (oldest_version BETWEEN 1 AND version),
  functions      text COLLATE "C",
  relations      text COLLATE "C"
);

-- +goose StatementBegin
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute
                  WHERE attrelid = 'outbox.migration'::regclass AND attname = 'functions') THEN
    RAISE EXCEPTION 'the schema % is from before the first release, and cannot be migrated', 'outbox'
      USING ERRCODE = 'feature_not_supported',
            HINT = 'Rename it, which keeps its tasks for code of that time, and migrate a new one.';
  END IF;
END
$$;
-- +goose StatementEnd


-- What is still to do. A finished task is deleted. The table has no CHECKs and few triggers:
-- PostgreSQL prepares each CHECK, and each WHEN of a trigger, anew for every statement. Functions
-- of triggers check instead, whose plans a session keeps.
CREATE TABLE IF NOT EXISTS outbox.task (
  task_id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_at            timestamptz NOT NULL DEFAULT now(),
  created_at        timestamptz NOT NULL DEFAULT now(),
  attempted_at      timestamptz,
  leased_until      timestamptz,
  relay_id          uuid,
  lease_token       uuid,
  priority          smallint    NOT NULL DEFAULT 0,
  attempt           smallint    NOT NULL DEFAULT 0,
  max_attempts      smallint,
  state             text COLLATE "C" NOT NULL DEFAULT 'ready',
  task_type         text COLLATE "C" NOT NULL,
  payload           jsonb       NOT NULL DEFAULT '{}',
  headers           jsonb,
  last_error        text,
  timeout_ms        integer,
  iterations        integer     NOT NULL DEFAULT 0,
  ordering_key      text COLLATE "C",
  skip_failed       boolean     NOT NULL DEFAULT false,
  unique_key        text COLLATE "C",
  unique_until_done boolean     NOT NULL DEFAULT false,
  timeline          jsonb
);

-- The lanes: the ready tasks of each type, in the order of claims. Each entry has its task's id, so
-- live entries are never equal, and deduplication saves no page split.
CREATE INDEX IF NOT EXISTS task_lane ON outbox.task (task_type, priority, attempt, task_id)
  WITH (deduplicate_items = off) WHERE state = 'ready';
-- The ready tasks by due time: for claims of those that have been due longest, whatever their
-- priority and attempts, and for the age of the oldest.
CREATE INDEX IF NOT EXISTS task_due ON outbox.task (task_type, run_at, task_id)
  WITH (deduplicate_items = off) WHERE state = 'ready';
CREATE INDEX IF NOT EXISTS task_scheduled ON outbox.task (task_type, run_at) WHERE state = 'scheduled';
CREATE INDEX IF NOT EXISTS task_leased ON outbox.task (relay_id, leased_until) WHERE state = 'leased';
-- The head of an ordering key, and the tasks behind it.
CREATE UNIQUE INDEX IF NOT EXISTS task_head ON outbox.task (task_type, ordering_key)
  WHERE ordering_key IS NOT NULL AND state <> 'waiting';
CREATE INDEX IF NOT EXISTS task_waiting ON outbox.task (task_type, ordering_key, task_id)
  WHERE state = 'waiting';
-- Pages of waiting tasks by id. Its condition keeps promotion from it. With state = 'waiting' plans of
-- old statistics use it: for a key behind 30,000 waiting tasks they read 693 pages instead of 3.
CREATE INDEX IF NOT EXISTS task_waiting_id ON outbox.task (task_type, task_id) WHERE state || '' = 'waiting';

-- Dead letters: tasks that no relay will run again by itself. A column of a task is one of these, too.
CREATE TABLE IF NOT EXISTS outbox.dead_task (
  LIKE outbox.task INCLUDING DEFAULTS,
  died_at           timestamptz NOT NULL DEFAULT now(),
  reason            text COLLATE "C" NOT NULL,
  task_max_attempts smallint,
  PRIMARY KEY (task_id),
  CONSTRAINT dead_task_reason_check CHECK (reason IN ('attempts', 'handler', 'lost_connections', 'committed')),
  CONSTRAINT dead_task_attempts_check CHECK (reason <> 'attempts' OR attempt >= max_attempts)
);
ALTER TABLE outbox.dead_task ALTER COLUMN state SET DEFAULT 'dead',
  ALTER COLUMN max_attempts SET NOT NULL;
CREATE INDEX IF NOT EXISTS dead_task_died ON outbox.dead_task (died_at, task_id);
CREATE INDEX IF NOT EXISTS dead_task_type ON outbox.dead_task (task_type, died_at, task_id);

-- History: finished tasks of the types that keep them.
CREATE TABLE IF NOT EXISTS outbox.done_task (
  LIKE outbox.task INCLUDING DEFAULTS,
  finished_at timestamptz NOT NULL,
  keep_until  timestamptz NOT NULL,
  PRIMARY KEY (task_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE outbox.done_task ALTER COLUMN state SET DEFAULT 'finished';
CREATE INDEX IF NOT EXISTS done_task_keep_until ON outbox.done_task (keep_until);
CREATE INDEX IF NOT EXISTS done_task_type ON outbox.done_task (task_type, task_id);

-- The journal: runs inside claims that are not committed yet. A claim that ends with a result deletes
-- its row; a row that stays is a lost run. A batch has one row, whose task_id is one of its tasks.
CREATE TABLE IF NOT EXISTS outbox.running (
  task_id         bigint      NOT NULL,
  token           uuid        NOT NULL,
  relay_id        uuid        NOT NULL,
  lost_connection boolean     NOT NULL DEFAULT false,
  started_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  task_ids        bigint[],
  first_id        bigint,
  last_id         bigint,
  xid             xid8,
  PRIMARY KEY (task_id, token)
);
ALTER TABLE outbox.running ALTER COLUMN task_ids SET STORAGE EXTERNAL;
CREATE INDEX IF NOT EXISTS running_batch ON outbox.running (last_id) WHERE task_ids IS NOT NULL;

-- One row for each relay process; it is alive until alive_until.
CREATE TABLE IF NOT EXISTS outbox.relay (
  relay_id      uuid        PRIMARY KEY,
  host          text COLLATE "C" NOT NULL,
  pid           integer     NOT NULL,
  started_at    timestamptz NOT NULL DEFAULT now(),
  alive_until   timestamptz NOT NULL,
  task_types    text[] COLLATE "C" NOT NULL,
  workers       integer,
  connections   integer,
  taken_over_at timestamptz,
  schedules     jsonb
);

-- The second, since 1970 by this server's clock, until which some idle relay asks to be woken.
CREATE SEQUENCE IF NOT EXISTS outbox.wake AS bigint MINVALUE 0 START 0 NO CYCLE;

-- When each job of maintenance is due. The relay that gets its row runs it.
CREATE TABLE IF NOT EXISTS outbox.maintenance (
  job    text COLLATE "C" PRIMARY KEY,
  due_at timestamptz NOT NULL DEFAULT now()
);

-- One row for each schedule that a relay was started with. The row is locked while it fires.
CREATE TABLE IF NOT EXISTS outbox.schedule (
  name       text COLLATE "C" PRIMARY KEY,
  next_at    timestamptz,
  last_at    timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  paused     boolean     NOT NULL DEFAULT false,
  catch_up   text COLLATE "C" NOT NULL DEFAULT 'once',
  task_type  text COLLATE "C" NOT NULL,
  payload    jsonb       NOT NULL,
  spec       text COLLATE "C" NOT NULL DEFAULT '',
  timing     text COLLATE "C" NOT NULL,
  definition text COLLATE "C" NOT NULL,
  CONSTRAINT schedule_name_check CHECK (octet_length(name) BETWEEN 1 AND 128 AND name !~ '[[:cntrl:]]'),
  CONSTRAINT schedule_catch_up_check CHECK (catch_up IN ('once', 'all')),
  CONSTRAINT schedule_time_check CHECK (isfinite(next_at) AND next_at < '10000-01-01 00:00:00+00'
       AND isfinite(last_at) AND last_at < '10000-01-01 00:00:00+00')
);

-- Types that were paused or are limited. A relay writes its limits as it starts: the last one counts.
CREATE TABLE IF NOT EXISTS outbox.task_type (
  task_type   text COLLATE "C" PRIMARY KEY,
  paused      boolean NOT NULL DEFAULT false,
  max_running integer,
  rate        integer,
  rate_per    bigint,
  CONSTRAINT task_type_name_check
    CHECK (octet_length(task_type) BETWEEN 1 AND 128 AND task_type !~ '[[:cntrl:]]'),
  CONSTRAINT task_type_max_running_check CHECK (max_running > 0),
  CONSTRAINT task_type_rate_check CHECK (rate > 0 AND rate_per > 0 AND (rate IS NULL) = (rate_per IS NULL))
);

-- A type with max_running has so many slots, numbered from 1. The transaction that has it locked holds
-- a slot, or the lease that it names, while its task has that token. So nothing has to free it.
CREATE TABLE IF NOT EXISTS outbox.slot (
  task_type   text COLLATE "C" NOT NULL,
  slot        integer NOT NULL CHECK (slot > 0),
  task_id     bigint,
  lease_token uuid,
  PRIMARY KEY (task_type, slot),
  CONSTRAINT slot_lease_check CHECK ((task_id IS NULL) = (lease_token IS NULL))
);

-- The token bucket of a type with a rate. It fills with time; emptied_at is when it would have been empty.
CREATE TABLE IF NOT EXISTS outbox.bucket (
  task_type  text COLLATE "C" PRIMARY KEY,
  emptied_at timestamptz NOT NULL DEFAULT '-infinity'
);

-- The task that has a unique key, or had it last. A row whose task is gone is swept.
CREATE TABLE IF NOT EXISTS outbox.unique_key (
  task_type text COLLATE "C" NOT NULL,
  key       text COLLATE "C" NOT NULL,
  task_id   bigint NOT NULL,
  PRIMARY KEY (task_type, key),
  CONSTRAINT unique_key_length_check CHECK (octet_length(key) BETWEEN 1 AND 256)
) WITH (fillfactor = 70);

-- Ordering keys that may have no head. A relay promotes the next waiting task of each.
CREATE TABLE IF NOT EXISTS outbox.headless_key (
  headless_key_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  task_type       text COLLATE "C" NOT NULL,
  ordering_key    text COLLATE "C" NOT NULL
);

-- Its one row is locked by the relay that promotes.
CREATE TABLE IF NOT EXISTS outbox.promote_lock (
  promote_lock boolean PRIMARY KEY DEFAULT true CHECK (promote_lock)
);
INSERT INTO outbox.promote_lock DEFAULT VALUES ON CONFLICT DO NOTHING;

-- Requests to cancel running tasks. A relay deletes them when the task is gone. A task may have
-- several, so a session that cancels waits for no other.
CREATE TABLE IF NOT EXISTS outbox.cancel (
  cancel_id    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  task_id      bigint      NOT NULL,
  requested_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS cancel_task_id ON outbox.cancel (task_id);

-- How many tasks there are by type and kind: a state of outbox.task, or dead. The kinds failed (runs)
-- and canceled are totals. The count is this table plus outbox.counter_log.
CREATE TABLE IF NOT EXISTS outbox.counter (
  task_type text COLLATE "C" NOT NULL,
  kind      text COLLATE "C" NOT NULL,
  tasks     bigint NOT NULL,
  arrived   bigint NOT NULL,
  PRIMARY KEY (task_type, kind)
);

-- Changes that are not in outbox.counter yet. Transactions only add rows, so none waits for
-- another; a relay folds them every few seconds. Beside a publication PostgreSQL deletes no row
-- that it cannot name to a subscriber, and an index would cost each change of a task.
CREATE TABLE IF NOT EXISTS outbox.counter_log (
  tasks     bigint NOT NULL,
  arrived   bigint NOT NULL DEFAULT 0,
  task_type text COLLATE "C" NOT NULL,
  kind      text COLLATE "C" NOT NULL
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000,
  autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE outbox.counter_log REPLICA IDENTITY FULL;

-- The counts of a type, once a minute, for a day.
CREATE TABLE IF NOT EXISTS outbox.sample (
  at           timestamptz NOT NULL,
  ready        bigint      NOT NULL,
  scheduled    bigint      NOT NULL,
  leased       bigint      NOT NULL,
  waiting      bigint      NOT NULL,
  dead         bigint      NOT NULL,
  finished     bigint      NOT NULL,
  failed       bigint      NOT NULL,
  oldest_ready bigint      NOT NULL,
  task_type    text COLLATE "C" NOT NULL,
  PRIMARY KEY (task_type, at)
);
CREATE INDEX IF NOT EXISTS sample_at ON outbox.sample (at);

-- Actions by hand. A tool writes the row in the transaction of the action; nothing deletes it.
CREATE TABLE IF NOT EXISTS outbox.audit (
  entry_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at       timestamptz NOT NULL DEFAULT now(),
  actor    text COLLATE "C" NOT NULL,
  tool     text COLLATE "C" NOT NULL,
  action   text COLLATE "C" NOT NULL,
  target   text COLLATE "C" NOT NULL DEFAULT '',
  count    bigint      NOT NULL DEFAULT 0,
  CONSTRAINT audit_actor_check  CHECK (octet_length(actor) BETWEEN 1 AND 256),
  CONSTRAINT audit_tool_check   CHECK (octet_length(tool) BETWEEN 1 AND 64),
  CONSTRAINT audit_action_check CHECK (octet_length(action) BETWEEN 1 AND 64),
  CONSTRAINT audit_target_check CHECK (octet_length(target) <= 1024),
  CONSTRAINT audit_count_check  CHECK (count >= 0)
);
CREATE INDEX IF NOT EXISTS audit_target_idx ON outbox.audit (target);

-- Events that a consumer has handled, for package inbox.
CREATE TABLE IF NOT EXISTS outbox.inbox (
  received_at timestamptz NOT NULL DEFAULT now(),
  keep_until  timestamptz NOT NULL,
  source      text COLLATE "C" NOT NULL,
  event_id    text COLLATE "C" NOT NULL,
  PRIMARY KEY (source, event_id),
  CONSTRAINT inbox_source_check CHECK (octet_length(source) BETWEEN 1 AND 1024),
  CONSTRAINT inbox_event_id_check CHECK (octet_length(event_id) BETWEEN 1 AND 1024),
  CONSTRAINT inbox_keep_until_check CHECK (isfinite(keep_until))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX IF NOT EXISTS inbox_keep_until ON outbox.inbox (keep_until);

-- The database that the tasks are of. Relays leave the tasks of a copy alone until it is adopted.
-- There is one row, or more if rows of another database were loaded into this one.
CREATE TABLE IF NOT EXISTS outbox.origin (
  database_id    uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  database_name  text COLLATE "C" NOT NULL,
  system_id      bigint,
  database_oid   oid         NOT NULL,
  table_oid      oid         NOT NULL,
  server_version integer     NOT NULL,
  environment    text COLLATE "C",
  noted_at       timestamptz NOT NULL DEFAULT now(),
  row_xid        xid,
  CONSTRAINT origin_environment_check
    CHECK (octet_length(environment) BETWEEN 1 AND 128 AND environment !~ '[[:cntrl:]]')
);

-- +goose StatementBegin
DO $$
DECLARE
  name text;
BEGIN
  -- Their rows come and go, so vacuum runs by how many did, and does not rest.
  FOREACH name IN ARRAY '{task,running,unique_key,headless_key,cancel,sample}'::text[] LOOP
    EXECUTE format('ALTER TABLE outbox.%I SET (
      autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
      autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
      autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
      autovacuum_vacuum_cost_delay = 0)', name);
  END LOOP;
  -- Their few rows are updated often, each to its next place in the same page.
  FOREACH name IN ARRAY '{relay,maintenance,schedule,slot,bucket,counter}'::text[] LOOP
    EXECUTE format('ALTER TABLE outbox.%I SET (
      fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100,
      autovacuum_vacuum_cost_delay = 0)', name);
  END LOOP;
END
$$;
-- +goose StatementEnd

INSERT INTO outbox.migration (version, oldest_version) VALUES (1, 1) ON CONFLICT DO NOTHING;
