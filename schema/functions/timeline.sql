-- The timeline of a task: what became of its attempts.

-- Returns the timeline with more events, which happened now unless they say when. An entry that says
-- throttled right after another one replaces it: at stays, times counts them, and last is the time
-- of the newest. Of more than 20 the timeline keeps the newest, the last redrive, the last
-- replacement and, as the one in which the trouble began, the first after these.
CREATE OR REPLACE FUNCTION outbox.add_events(timeline jsonb, added jsonb) RETURNS jsonb
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  WITH given AS (
    SELECT COALESCE(timeline, '[]') AS old, added AS new,
           COALESCE(timeline -> -1 ->> 'event' = 'throttled' AND added -> 0 ->> 'event' = 'throttled',
                    false) AS in_a_row),
  merged AS (
    SELECT CASE WHEN in_a_row THEN old - -1 ELSE old END AS old,
           CASE WHEN in_a_row THEN jsonb_set(new, '{0}', new -> 0 || jsonb_build_object(
             'at', old -> -1 -> 'at', 'last', COALESCE(new -> 0 -> 'at', to_jsonb(clock_timestamp())),
             'times', COALESCE((old -> -1 ->> 'times')::integer, 1) + 1)) ELSE new END AS new
      FROM given),
  every AS (
    SELECT e.event, e.i FROM merged, jsonb_array_elements(merged.old) WITH ORDINALITY AS e (event, i)
     UNION ALL
    SELECT jsonb_build_object('at', clock_timestamp()) || e.event,
           e.i + jsonb_array_length(merged.old)
      FROM merged, jsonb_array_elements(merged.new) WITH ORDINALITY AS e (event, i)),
  marks AS (
    SELECT COALESCE(max(every.i) FILTER (WHERE every.event ->> 'event' = 'redriven'), 0) AS redriven,
           COALESCE(max(every.i) FILTER (WHERE every.event ->> 'event' = 'replaced'), 0) AS replaced
      FROM every),
  kept AS (
    SELECT every.event, every.i FROM every, marks
     ORDER BY every.i IN (redriven, replaced, GREATEST(redriven, replaced) + 1) DESC, every.i DESC
     LIMIT 20)
  SELECT jsonb_agg(kept.event ORDER BY kept.i) FROM kept
$$;

-- Returns the runs of a task that were lost after the given number of attempts, as events; NULL if
-- there are none. They are those in the journal of other relays, except the tokens whose relays may
-- live.
CREATE OR REPLACE FUNCTION outbox.lost_runs(of_task bigint, attempts integer, living uuid[],
  of_relay uuid) RETURNS jsonb
LANGUAGE sql STABLE STRICT SET enable_seqscan = off SET enable_indexscan = on
  SET enable_nestloop = on SET search_path = pg_catalog, pg_temp SET jit = off AS $$
  SELECT jsonb_agg(jsonb_build_object('event', 'lost', 'attempt', attempts + l.n,
                                      'at', l.started_at, 'relay', l.relay_id) ORDER BY l.n)
    FROM (SELECT r.started_at, r.relay_id,
                 row_number() OVER (ORDER BY r.started_at, r.token) AS n
            FROM outbox.running r
           WHERE r.task_id = of_task AND r.task_ids IS NULL AND NOT r.lost_connection
             AND r.relay_id <> of_relay AND r.token <> ALL (living)) AS l
$$;

-- Returns the timeline of a whole row with the events of the run and, before them, those of lost runs:
-- see lost_runs. attempts is the number before these.
CREATE OR REPLACE FUNCTION outbox.timeline(
  task jsonb, attempts integer, living uuid[], of_relay uuid, events jsonb) RETURNS jsonb
LANGUAGE sql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
  SELECT outbox.add_events(NULLIF(task -> 'timeline', 'null'),
    COALESCE(outbox.lost_runs((task ->> 'task_id')::bigint, attempts, living, of_relay), '[]')
    || COALESCE(events, '[]'))
$$;
