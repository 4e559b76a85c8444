-- +goose Up
-- Bodies as texts, for the two functions of version 1 whose parsed bodies (RETURN ...) depend on
-- the type of a table's rows: beside these PostgreSQL refuses a column with a default, and a
-- generated one. They mean the same until the present functions replace them.

-- +goose StatementBegin
DO $$
DECLARE
  f record;
BEGIN
  FOR f IN
    SELECT p.oid::regproc AS name, pg_get_function_result(p.oid) AS result,
           regexp_replace(pg_get_function_sqlbody(p.oid), '^RETURN', 'SELECT') AS body
      FROM pg_proc p
     WHERE p.prosqlbody IS NOT NULL
       AND p.oid IN (to_regprocedure('outbox.rest(outbox.task)'),
                     to_regprocedure('outbox.claimed(outbox.task)'))
  LOOP
    EXECUTE format('CREATE OR REPLACE FUNCTION %s(t outbox.task) RETURNS %s LANGUAGE sql STABLE AS %L',
      f.name, f.result, f.body);
  END LOOP;
END
$$;
-- +goose StatementEnd

-- Marks by which a database knows that it is the tasks' own, whatever maintenance does.

-- outbox.origin notes the catalog's mark, and the latest relay of another environment.
ALTER TABLE outbox.origin ADD COLUMN IF NOT EXISTS mark text COLLATE "C",
  ADD COLUMN IF NOT EXISTS refused_environment text COLLATE "C",
  ADD COLUMN IF NOT EXISTS refused_at timestamptz;

-- The oid of the database in which all that waits was enqueued. A sequence, as nobody waits for
-- one.
CREATE SEQUENCE IF NOT EXISTS outbox.home AS bigint MINVALUE 0 START 0 NO CYCLE;

-- +goose StatementBegin
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'outbox.origin'::regclass
                    AND attname = 'row_xid' AND NOT attisdropped)
     OR NOT EXISTS (SELECT FROM outbox.origin) THEN
    RETURN; -- applied before, or new
  END IF;
  -- The functions of the version before judge by what they know, for the last time.
  IF EXISTS (SELECT FROM outbox.note_origin(NULL) s WHERE s.refused) THEN
    RETURN;
  END IF;
  EXECUTE format('CREATE TYPE outbox.mark AS ENUM (%L)', gen_random_uuid());
  UPDATE outbox.origin SET mark = (
    SELECT concat_ws(' ', enumtypid, enumlabel) FROM pg_enum
     WHERE enumtypid = to_regtype('outbox.mark'));
  PERFORM setval('outbox.home', d.oid::bigint) FROM pg_database d WHERE d.datname = current_database();
END
$$;
-- +goose StatementEnd

ALTER TABLE outbox.origin DROP COLUMN IF EXISTS row_xid;

INSERT INTO outbox.migration (version, oldest_version) VALUES (2, 1) ON CONFLICT DO NOTHING;
