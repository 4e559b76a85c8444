-- Redrive: dead letters become tasks again.

-- Makes the dead letters with the ids tasks again, and returns those that it found, the first to
-- die first: when it died, whether it was chosen, and whether its task was written. A task keeps
-- the id that it had, so nobody gives ids by calling this. It does not wait for those that others
-- have locked.
--
-- One statement moves the row, so it is in one place at any time. It arrives as scheduled and due,
-- so that no trigger takes it for a new task, or as waiting behind others of its ordering key,
-- until it is the head; its insert wakes the relays. What the journal may still have of its runs
-- would count as attempts, and a request to cancel it is from before. It does not expire any more, as
-- somebody wants it to run. Without attempted_at it is counted as a task that came.
--
-- A dead letter takes its unique key first, by the rules of take_key. The key is another's if its
-- row has changed since the statement began, or names a task that waits, or one that keeps its key
-- until it is done or until a time to come: the dead letter stays then, or becomes a task without the
-- key. Of several dead letters with one key the first to die takes it. Keys are locked in the order in
-- which enqueues lock them, which is that of the payloads for keys that the database made of these (only a
-- payload that RunAgainWith or set_payload replaced may be out of it).
CREATE OR REPLACE FUNCTION outbox.redrive(ids bigint[], without_key boolean, actor text)
RETURNS TABLE (task_id bigint, died_us bigint, chosen boolean, written boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
  SET enable_indexscan = on SET enable_nestloop = on SET jit = off AS $$
BEGIN
  RETURN QUERY
  WITH d AS MATERIALIZED (
    SELECT l.task_id, l.died_at, l.task_type, l.payload, l.headers, l.unique_key, l.unique_until
      FROM outbox.dead_task l
     WHERE l.task_id = ANY ($1) FOR UPDATE SKIP LOCKED),
  keys AS MATERIALIZED (
    INSERT INTO outbox.unique_key AS k (task_type, key, task_id, keep_until)
    SELECT n.task_type, n.unique_key, n.task_id, n.unique_until
      FROM (SELECT DISTINCT ON (d.task_type, d.unique_key) d.task_type, d.unique_key, d.task_id,
                   d.unique_until, d.payload, d.unique_key LIKE '$payload:%'
                     AND NOT COALESCE(d.headers ? 'outbox-codec', false) AS of_payload
              FROM d WHERE d.unique_key IS NOT NULL
             ORDER BY d.task_type, d.unique_key, d.died_at, d.task_id) AS n
     ORDER BY n.task_type COLLATE "C",
              CASE WHEN n.of_payload THEN '$payload' ELSE n.unique_key END COLLATE "C",
              CASE WHEN n.of_payload THEN n.payload END
    ON CONFLICT (task_type, key) DO UPDATE SET task_id = EXCLUDED.task_id,
           keep_until = EXCLUDED.keep_until
     WHERE k.ctid = (SELECT seen.ctid FROM outbox.unique_key seen
                      WHERE seen.task_type = EXCLUDED.task_type AND seen.key = EXCLUDED.key)
       AND (k.keep_until > clock_timestamp() AND k.task_id <> EXCLUDED.task_id) IS NOT TRUE
       AND (SELECT t.unique_until_done FROM outbox.task t WHERE t.task_id = k.task_id) IS NOT TRUE
       AND NOT EXISTS (
         SELECT 1 FROM outbox.task t WHERE t.task_id = k.task_id AND t.state <> 'leased'
            AND (t.expires_at IS NULL OR NOT outbox.is_expired(t.task_id))
            FOR KEY SHARE SKIP LOCKED)
    RETURNING k.task_id),
  chosen AS (
    SELECT d.task_id FROM d
     WHERE $2 OR d.unique_key IS NULL OR d.task_id IN (SELECT keys.task_id FROM keys)),
  runs AS (
    DELETE FROM outbox.running r WHERE r.task_id = ANY (ARRAY(SELECT chosen.task_id FROM chosen))),
  asked AS (
    DELETE FROM outbox.cancel c WHERE c.task_id = ANY (ARRAY(SELECT chosen.task_id FROM chosen))),
  gone AS (
    DELETE FROM outbox.dead_task l WHERE l.task_id = ANY (ARRAY(SELECT chosen.task_id FROM chosen))
    RETURNING l.task_id, l.task_type, l.ordering_key, l.timeline, to_jsonb(l) AS task),
  back AS (
    INSERT INTO outbox.task AS new OVERRIDING SYSTEM VALUE
    SELECT t.* FROM gone CROSS JOIN LATERAL
           outbox.row_of(NULL::outbox.task, gone.task || jsonb_build_object(
           'run_at', now(), 'attempted_at', NULL, 'attempt', 0,
           'max_attempts', gone.task -> 'task_max_attempts', 'group_place', NULL, 'expires_at', NULL,
           'state', CASE WHEN gone.ordering_key IS NULL THEN 'scheduled' ELSE 'waiting' END,
           'unique_key', CASE WHEN gone.task_id IN (SELECT keys.task_id FROM keys)
                              THEN gone.task -> 'unique_key' END,
           'unique_until', CASE WHEN gone.task_id IN (SELECT keys.task_id FROM keys)
                                THEN gone.task -> 'unique_until' END,
           'timeline', outbox.add_events(gone.timeline, jsonb_build_array(jsonb_strip_nulls(
             jsonb_build_object('event', 'redriven', 'by', NULLIF($3, '')))))),
           (SELECT outbox.lacking('outbox.task', gone.task) FROM gone LIMIT 1)) AS t
    RETURNING new.task_id),
  headless AS (
    INSERT INTO outbox.headless_key (task_type, ordering_key)
    SELECT DISTINCT gone.task_type, gone.ordering_key FROM gone WHERE gone.ordering_key IS NOT NULL)
  SELECT d.task_id, (extract(epoch FROM d.died_at) * 1000000)::bigint, gone.task_id IS NOT NULL,
         back.task_id IS NOT NULL
    FROM d LEFT JOIN gone ON gone.task_id = d.task_id LEFT JOIN back ON back.task_id = d.task_id
   ORDER BY d.died_at, d.task_id;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.redrive(bigint[], boolean, text) FROM PUBLIC;
