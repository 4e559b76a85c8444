-- +goose Up
-- A wake-up names no task of a type that is paused, which a relay would claim without a poll.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00031_paused.sql

-- As in 00028, but for the condition on the types that are paused.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_wake() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n bigint;
BEGIN
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT 1::bigint, num_nulls(attempted_at)::bigint, task_type, state FROM added
   WHERE state IN ('ready', 'scheduled') AND attempt >= 0
     AND num_nonnulls(lease_token, leased_until, max_attempts, headers, timeout_ms,
                      attempted_at) = 0
     AND octet_length(task_type) <= 128 AND task_type ~ '^[^[:cntrl:]]+$'
     AND least(run_at, created_at) > '-infinity'
       AND greatest(run_at, created_at) < '10000-01-01 00:00:00+00'
      OR outbox.check_task(task_id)
   LIMIT 3;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n = 3 THEN
    INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
    SELECT count(*), count(*) - count(attempted_at), task_type, state
      FROM (SELECT * FROM added OFFSET 3) AS rest
     WHERE (state IN ('ready', 'scheduled') OR state = 'waiting' AND ordering_key IS NOT NULL)
       AND attempt >= 0
       AND num_nonnulls(lease_token, leased_until) = 0
       AND (max_attempts > 0) IS NOT FALSE AND (timeout_ms > 0) IS NOT FALSE
         AND (jsonb_typeof(headers) = 'object') IS NOT FALSE
       AND octet_length(task_type) <= 128 AND task_type ~ '^[^[:cntrl:]]+$'
       AND least(run_at, created_at, attempted_at) > '-infinity'
       AND greatest(run_at, created_at, attempted_at) < '10000-01-01 00:00:00+00'
        OR outbox.check_task(task_id)
     GROUP BY task_type, state;
  END IF;
  IF pg_sequence_last_value('outbox.wake'::regclass) > 0 THEN
    IF clock_timestamp() < to_timestamp(pg_sequence_last_value('outbox.wake'::regclass)) THEN
      IF n < 3 AND current_setting('outbox_wake.named', true) IS DISTINCT FROM 'true' THEN
        PERFORM pg_notify(TG_TABLE_SCHEMA, concat((
          SELECT concat_ws(' ', priority, task_id, task_type) FROM added
           WHERE state = 'ready' AND task_type <> ALL (ARRAY(
             SELECT p.task_type FROM outbox.task_type p WHERE p.paused))
           ORDER BY priority, task_id LIMIT 1)));
        PERFORM set_config('outbox_wake.named', 'true', true);
      ELSE
        PERFORM pg_notify(TG_TABLE_SCHEMA, '');
      END IF;
    END IF;
  END IF;
  RETURN NULL;
END
$$;
-- +goose StatementEnd

INSERT INTO outbox.migration (version) VALUES (31) ON CONFLICT DO NOTHING;
