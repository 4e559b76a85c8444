-- +goose Up
-- Bodies as texts, for the two functions of version 1 whose parsed bodies (RETURN ...) depend on the
-- type of a table's rows: beside these PostgreSQL refuses a column with a default, and a generated one.
-- They mean the same until the present functions replace them.

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

INSERT INTO outbox.migration (version, oldest_version) VALUES (2, 1) ON CONFLICT DO NOTHING;
