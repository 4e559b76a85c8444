-- +goose Up
-- What became of the attempts of a task, beside it.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00025_timeline.sql

ALTER TABLE outbox.task ADD COLUMN IF NOT EXISTS timeline jsonb;
ALTER TABLE outbox.dead_task ADD COLUMN IF NOT EXISTS timeline jsonb;
ALTER TABLE outbox.done_task ADD COLUMN IF NOT EXISTS timeline jsonb;
COMMENT ON COLUMN outbox.task.timeline
  IS 'failed and lost attempts, deaths and redrives, the oldest first, at most 20; NULL: none';

-- What few tasks have, for whoever claims one: NULL, or the columns as a JSON array.
CREATE OR REPLACE FUNCTION outbox.optional_columns(t outbox.task) RETURNS text LANGUAGE sql STABLE
RETURN CASE
  WHEN num_nonnulls(t.max_attempts, t.headers, t.last_error, t.unique_key, t.timeout_ms,
    t.ordering_key, t.timeline) = 0
   AND (t.attempted_at IS NULL OR t.state = 'leased')
     AND NOT (t.iterations > 0 OR t.unique_until_done OR t.skip_failed) THEN NULL
  ELSE json_build_array((extract(epoch FROM t.attempted_at) * 1000000)::bigint, t.max_attempts,
    t.headers, t.last_error,
         t.unique_key, t.unique_until_done, t.timeout_ms, t.iterations, t.ordering_key,
           t.skip_failed, t.timeline)::text
END;

-- The timeline with more events, which happened now unless they say when. Of more than 20 it keeps
-- the newest and, as the one in which the trouble began, the first after the last redrive.
CREATE OR REPLACE FUNCTION outbox.add_events(timeline jsonb, added jsonb) RETURNS jsonb
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  WITH every AS (
    SELECT e.event, e.i FROM jsonb_array_elements(COALESCE(timeline, '[]')) WITH ORDINALITY AS e (event, i)
     UNION ALL
    SELECT jsonb_build_object('at', clock_timestamp()) || e.event,
           e.i + jsonb_array_length(COALESCE(timeline, '[]'))
      FROM jsonb_array_elements(added) WITH ORDINALITY AS e (event, i)),
  bounds AS (
    SELECT count(*) - 20 AS over,
           COALESCE(max(every.i) FILTER (WHERE every.event ->> 'event' = 'redriven'), 0) + 1 AS first
      FROM every)
  SELECT jsonb_agg(every.event ORDER BY every.i) FROM every, bounds
   WHERE every.i = bounds.first
      OR every.i > bounds.over + CASE WHEN bounds.over > 0 AND bounds.first <= bounds.over THEN 1 ELSE 0 END
$$;

-- The runs of a task that were lost after the given number of attempts, as events: those in the
-- journal of other relays, but for the tokens, whose relays may live. NULL: none.
CREATE OR REPLACE FUNCTION outbox.lost_runs(of_task bigint, attempts integer, living uuid[],
  of_relay uuid) RETURNS jsonb
LANGUAGE sql STABLE STRICT SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
  SELECT jsonb_agg(jsonb_build_object('event', 'lost', 'attempt', attempts + l.n,
                                      'at', l.started_at, 'relay', l.relay_id) ORDER BY l.n)
    FROM (SELECT r.started_at, r.relay_id,
                 row_number() OVER (ORDER BY r.started_at, r.token) AS n
            FROM outbox.running r
           WHERE r.task_id = of_task AND r.task_ids IS NULL AND NOT r.lost_connection
             AND r.relay_id <> of_relay AND r.token <> ALL (living)) AS l
$$;

INSERT INTO outbox.migration (version) VALUES (25) ON CONFLICT DO NOTHING;
