-- +goose Up
-- Limits by key: tasks with a group_key wait for one of the numbered places of their key.
--
-- A relay of the version before runs such tasks from their places, and leaves giving places to others.
-- Its UPDATEs keep the limits, by the trigger task_grouped.
ALTER TABLE outbox.task
  ADD COLUMN IF NOT EXISTS group_key text COLLATE "C", ADD COLUMN IF NOT EXISTS group_place smallint;
ALTER TABLE outbox.dead_task
  ADD COLUMN IF NOT EXISTS group_key text COLLATE "C", ADD COLUMN IF NOT EXISTS group_place smallint;
ALTER TABLE outbox.done_task
  ADD COLUMN IF NOT EXISTS group_key text COLLATE "C", ADD COLUMN IF NOT EXISTS group_place smallint;
-- The places that are taken, and the tasks that wait for one.
CREATE UNIQUE INDEX IF NOT EXISTS task_place ON outbox.task (task_type, group_key, group_place)
  WHERE group_place IS NOT NULL;
CREATE INDEX IF NOT EXISTS task_grouped ON outbox.task (task_type, group_key, priority, run_at, task_id)
  WHERE group_key IS NOT NULL AND state = 'waiting';

ALTER TABLE outbox.task_type ADD COLUMN IF NOT EXISTS max_running_per_key integer
  CONSTRAINT task_type_max_running_per_key_check CHECK (max_running_per_key > 0);

-- How many tasks a relay runs at once of each type, for who asks why a task waits.
ALTER TABLE outbox.relay ADD COLUMN IF NOT EXISTS limits jsonb;

-- Group keys that may have a free place and a task that waits for it. A relay promotes for each. The ids
-- are from the sequence of headless_key, so that one mark tells which requests of both are new.
CREATE TABLE IF NOT EXISTS outbox.place_request (
  place_request_id bigint PRIMARY KEY DEFAULT nextval('outbox.headless_key_headless_key_id_seq'),
  task_type        text COLLATE "C" NOT NULL,
  group_key        text COLLATE "C" NOT NULL
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0);

-- Who promotes heads of ordering keys gives places, too, also before the roles are applied again.
-- +goose StatementBegin
DO $$
DECLARE
  role text;
BEGIN
  FOR role IN
    SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
      FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
     WHERE c.oid = 'outbox.headless_key'::regclass AND a.privilege_type = 'DELETE'
       AND a.grantee <> c.relowner
  LOOP
    EXECUTE 'GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.place_request TO ' || role;
    EXECUTE 'GRANT USAGE ON SEQUENCE outbox.headless_key_headless_key_id_seq TO ' || role;
  END LOOP;
END
$$;
-- +goose StatementEnd

INSERT INTO outbox.migration (version, oldest_version) VALUES (5, 1) ON CONFLICT DO NOTHING;
