-- +goose Up
-- The outbox: tasks, dead letters, relays, the journal of runs, the wish for wake-ups.
-- Needs PostgreSQL 14 or newer. With psql: psql -v ON_ERROR_STOP=1 -1 -f 00001_outbox.sql

-- +goose StatementBegin
DO $$
BEGIN
  IF current_setting('server_encoding') <> 'UTF8' THEN
    RAISE EXCEPTION 'the database % has the encoding %, but tasks need UTF8',
      current_database(), current_setting('server_encoding')
      USING ERRCODE = 'feature_not_supported',
            HINT = 'Create a database with TEMPLATE template0 ENCODING ''UTF8'', and move the data there.';
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

-- What is still to do. A finished task is deleted.
CREATE TABLE IF NOT EXISTS outbox.task (
  task_id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_at       timestamptz NOT NULL DEFAULT now(),
  created_at   timestamptz NOT NULL DEFAULT now(),
  attempted_at timestamptz,
  leased_until timestamptz,
  relay_id     uuid,
  lease_token  uuid,
  priority     smallint    NOT NULL DEFAULT 0,
  attempt      smallint    NOT NULL DEFAULT 0,
  max_attempts smallint,
  state        text        NOT NULL DEFAULT 'ready',
  task_type    text        NOT NULL,
  payload      jsonb       NOT NULL DEFAULT '{}',
  headers      jsonb,
  last_error   text,
  CONSTRAINT task_state_check        CHECK (state IN ('ready', 'scheduled', 'leased')),
  CONSTRAINT task_lease_check        CHECK ((state = 'leased') = (lease_token IS NOT NULL)
                                        AND (lease_token IS NULL OR relay_id IS NOT NULL)
                                        AND (leased_until IS NULL OR lease_token IS NOT NULL)),
  CONSTRAINT task_type_check         CHECK (octet_length(task_type) BETWEEN 1 AND 128 AND task_type !~ '[[:cntrl:]]'),
  CONSTRAINT task_attempt_check      CHECK (attempt >= 0),
  CONSTRAINT task_max_attempts_check CHECK (max_attempts > 0),
  CONSTRAINT task_headers_check      CHECK (jsonb_typeof(headers) = 'object'),
  CONSTRAINT task_time_check         CHECK (isfinite(run_at) AND run_at < '10000-01-01 00:00:00+00'
                                        AND isfinite(created_at) AND created_at < '10000-01-01 00:00:00+00'
                                        AND isfinite(attempted_at) AND attempted_at < '10000-01-01 00:00:00+00')
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN outbox.task.priority     IS 'lower runs first; 0 is normal';
COMMENT ON COLUMN outbox.task.attempt      IS 'attempts begun and counted; 0 until the first';
COMMENT ON COLUMN outbox.task.max_attempts IS 'NULL: as the handler was registered';
COMMENT ON COLUMN outbox.task.relay_id     IS 'leased: the relay that holds the lease; otherwise: the relay that died while it ran this task';

-- The lanes: what may be claimed, in the order of claiming.
CREATE INDEX IF NOT EXISTS task_lane ON outbox.task (task_type, priority, attempt, task_id) WHERE state = 'ready';
CREATE INDEX IF NOT EXISTS task_scheduled ON outbox.task (task_type, run_at) WHERE state = 'scheduled';
CREATE INDEX IF NOT EXISTS task_leased ON outbox.task (relay_id, leased_until) WHERE state = 'leased';

-- Dead letters: tasks that no relay will run again by itself.
CREATE TABLE IF NOT EXISTS outbox.dead_task (
  task_id      bigint      PRIMARY KEY,
  run_at       timestamptz NOT NULL,
  created_at   timestamptz NOT NULL,
  attempted_at timestamptz,
  died_at      timestamptz NOT NULL DEFAULT now(),
  priority     smallint    NOT NULL,
  attempt      smallint    NOT NULL,
  max_attempts smallint    NOT NULL,
  reason       text        NOT NULL,
  task_type    text        NOT NULL,
  payload      jsonb       NOT NULL,
  headers      jsonb,
  last_error   text,
  CONSTRAINT dead_task_reason_check   CHECK (reason IN ('attempts', 'handler', 'lost_connections', 'committed')),
  CONSTRAINT dead_task_attempts_check CHECK (reason <> 'attempts' OR attempt >= max_attempts)
);
COMMENT ON COLUMN outbox.dead_task.reason IS 'attempts: all were used; handler: it returned Dead, or its backoff said stop; lost_connections: ten runs lost their connection; committed: the handler committed the claim and then failed';

-- One row for each relay process; it is alive until alive_until.
CREATE TABLE IF NOT EXISTS outbox.relay (
  relay_id    uuid        PRIMARY KEY,
  host        text        NOT NULL,
  pid         integer     NOT NULL,
  started_at  timestamptz NOT NULL DEFAULT now(),
  alive_until timestamptz NOT NULL,
  task_types  text[]      NOT NULL
) WITH (
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100,
  autovacuum_vacuum_cost_delay = 0
);

-- The journal of runs inside claims that are not committed yet. The claim deletes the rows of its
-- tasks when it ends with a result; a row that stays is a run that was lost.
CREATE TABLE IF NOT EXISTS outbox.running (
  task_id         bigint      NOT NULL,
  token           uuid        NOT NULL,
  relay_id        uuid        NOT NULL,
  lost_connection boolean     NOT NULL DEFAULT false,
  started_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (task_id, token)
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0
);

-- The second, since 1970 by this server's clock, until which some idle relay wants to be woken.
CREATE SEQUENCE IF NOT EXISTS outbox.wake AS bigint MINVALUE 0 START 0 NO CYCLE;

-- A task whose time has not come arrives as scheduled.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_schedule() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  NEW.state := 'scheduled';
  RETURN NEW;
END
$$;
-- +goose StatementEnd

-- NOTIFY takes a lock that serialises commits, so it is sent only while a relay asks for it.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_wake() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF (SELECT last_value FROM outbox.wake) > extract(epoch FROM clock_timestamp()) THEN
    PERFORM pg_notify(TG_TABLE_SCHEMA, '');
  END IF;
  RETURN NULL;
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION outbox.task_schedule() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION outbox.task_wake() FROM PUBLIC;

CREATE OR REPLACE TRIGGER task_schedule BEFORE INSERT ON outbox.task
  FOR EACH ROW WHEN (NEW.state = 'ready' AND NEW.run_at > now()) EXECUTE FUNCTION outbox.task_schedule();
CREATE OR REPLACE TRIGGER task_wake AFTER INSERT ON outbox.task
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_wake();

INSERT INTO outbox.migration (version) VALUES (1) ON CONFLICT DO NOTHING;
