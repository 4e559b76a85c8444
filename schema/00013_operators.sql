-- +goose Up
-- What operators' tools read and write: who did what, how the counts went, what a relay may use; and RunNow.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00013_operators.sql

-- What was done by hand. A tool writes the row in the transaction of the action; nothing deletes it.
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
COMMENT ON COLUMN outbox.audit.target IS 'a task type, a task id, a filter in words; never a payload';
COMMENT ON COLUMN outbox.audit.count  IS 'how many tasks it was about';

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
  task_type    text        NOT NULL,
  PRIMARY KEY (task_type, at)
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN outbox.sample.finished     IS 'since the counters began, as failed';
COMMENT ON COLUMN outbox.sample.oldest_ready IS 'microseconds for which the next task has been due; 0: none is ready';
CREATE INDEX IF NOT EXISTS sample_at ON outbox.sample (at);

-- What its process may use at most.
ALTER TABLE outbox.relay
  ADD COLUMN IF NOT EXISTS workers     integer,
  ADD COLUMN IF NOT EXISTS connections integer;
COMMENT ON COLUMN outbox.relay.workers     IS 'handler calls at once; NULL: not known';
COMMENT ON COLUMN outbox.relay.connections IS 'of its pool; NULL: not known, or any number';

-- A scheduled task becomes ready now, as if its time had come: a relay that has it locked is doing just that. Relays that sleep are woken by the
-- commit: what becomes ready by an UPDATE sends no wake-up by itself. A session keeps its plan, also one that was made when no task was scheduled: so the
-- state is asked for in a way that no index of scheduled tasks fits.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.run_task_now(task_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
  PERFORM FROM outbox.task t WHERE t.task_id = $1 AND t.state || '' = 'scheduled' FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE outbox.task t SET state = 'ready', run_at = LEAST(t.run_at, now()) WHERE t.task_id = $1;
  PERFORM pg_notify(n.nspname, '') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = 'outbox.wake'::regclass;
  RETURN true;
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION outbox.run_task_now(bigint) FROM PUBLIC;

INSERT INTO outbox.migration (version) VALUES (13) ON CONFLICT DO NOTHING;
