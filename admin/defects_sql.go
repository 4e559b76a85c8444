package admin

// Which id each sequence must be beyond, and its last one. Rows of finished tasks are mostly gone.
// So the ids of tasks also exceed the number of those that ended, less those that were redriven,
// whose ids are old. The others have rows, and a restore may have counted them twice.
const wantedSQL = `
WITH known (of_table, of_column, id) AS (
  SELECT 'task', 'task_id', GREATEST($1::bigint,
    (SELECT max(task_id) FROM outbox.task), (SELECT max(task_id) FROM outbox.dead_task),
    (SELECT max(task_id) FROM outbox.done_task),
    (SELECT max(task_id) FROM (SELECT task_id FROM outbox.unique_key LIMIT 100000) AS k),
    (SELECT max(GREATEST(task_id, last_id)) FROM outbox.running), (SELECT max(task_id) FROM outbox.cancel),
    (SELECT sum(CASE kind WHEN 'dead' THEN -arrived WHEN 'failed' THEN 0 WHEN 'canceled' THEN arrived
                          ELSE arrived - tasks END)::bigint
       FROM (SELECT kind, arrived, tasks FROM outbox.counter
              UNION ALL SELECT kind, arrived, tasks FROM outbox.counter_log) AS c))
   UNION ALL SELECT 'headless_key', 'headless_key_id', max(headless_key_id) FROM outbox.headless_key
   UNION ALL SELECT 'cancel', 'cancel_id', max(cancel_id) FROM outbox.cancel
   UNION ALL SELECT 'audit', 'entry_id', max(entry_id) FROM outbox.audit),
sequences AS MATERIALIZED (
  SELECT pg_catalog.to_regclass(pg_catalog.pg_get_serial_sequence('outbox.' || of_table, of_column)) AS of, id FROM known),
behind AS MATERIALIZED (
  SELECT c.oid, c.relname AS name, COALESCE(pg_catalog.pg_sequence_last_value(s.of), 0) AS last, s.id
    FROM sequences s JOIN pg_catalog.pg_class c ON c.oid = s.of
   WHERE s.id > COALESCE(pg_catalog.pg_sequence_last_value(s.of), 0))`

// The gap is for ids of which nothing is left: of tasks that finished, or were never committed.
const findSequencesSQL = `/* outbox: sequences that are behind their rows */` + wantedSQL + `
SELECT name, last, id + 1000000, '' FROM behind ORDER BY name`

const setSequencesSQL = `/* outbox: set sequences beyond their rows */` + wantedSQL + `
SELECT pg_catalog.setval(oid, id + 1000000) FROM behind`

// The counts by type and kind, and the rows. A task that was counted twice, as by a restore with
// triggers, is subtracted from both numbers, if the trigger counted it as new. A task that was not
// counted did not arrive by the counts either. So the number of finished tasks stays, and is at
// least 0.
const countsSQL = `
WITH held AS (
  SELECT task_type, state AS kind, count(*) AS n, count(*) - count(attempted_at) AS fresh
    FROM outbox.task GROUP BY task_type, state
   UNION ALL
  SELECT task_type, 'dead' COLLATE "C", count(*), 0 FROM outbox.dead_task GROUP BY task_type),
counted AS (
  SELECT task_type, kind, sum(tasks)::bigint AS n, sum(arrived)::bigint AS arrived
    FROM (SELECT task_type, kind, tasks, arrived FROM outbox.counter
           UNION ALL SELECT task_type, kind, tasks, arrived FROM outbox.counter_log) AS c
   GROUP BY task_type, kind),
every AS MATERIALIZED (
  SELECT task_type, kind, COALESCE(counted.n, 0) AS counted, COALESCE(held.n, 0) AS held,
         COALESCE(held.fresh, 0) AS fresh, COALESCE(counted.arrived, 0) AS arrived
    FROM counted FULL JOIN held USING (task_type, kind)),
totals AS (
  SELECT task_type, sum(fresh) AS fresh,
         COALESCE(sum(counted - held) FILTER (WHERE kind NOT IN ('dead', 'failed', 'canceled')), 0) AS over,
         GREATEST(sum(counted - held) FILTER (WHERE kind = 'dead'), 0) AS over_dead,
         sum(CASE kind WHEN 'dead' THEN -arrived WHEN 'canceled' THEN -counted WHEN 'failed' THEN 0
                       ELSE arrived - counted END) AS finished
    FROM every GROUP BY task_type),
finishes AS MATERIALIZED (
  SELECT task_type, over, over_dead, finished,
         GREATEST(0, finished + over_dead + CASE WHEN over > 0 THEN over - LEAST(over, fresh) ELSE 0 END) AS should
    FROM totals)`

const findCountsSQL = `/* outbox: counts that differ from the rows */` + countsSQL + `
SELECT task_type || ' ' || kind, counted, held, '' FROM every
 WHERE kind NOT IN ('failed', 'canceled') AND counted <> held
 UNION ALL
SELECT task_type || ' finished', finished::bigint, should::bigint, '' FROM finishes WHERE finished <> should
 ORDER BY 1`

// Two recounts at once would both add what is missing. The lock holds up no relay and no enqueue.
const lockCountsSQL = `/* outbox: lock the recount */
LOCK TABLE outbox.counter IN SHARE UPDATE EXCLUSIVE MODE`

const addCountsSQL = `/* outbox: add what the counts lack */` + countsSQL + `
INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
SELECT held - counted, 0, task_type, kind FROM every WHERE kind NOT IN ('failed', 'canceled') AND counted <> held
 UNION ALL
SELECT 0, should - finished - over - over_dead, task_type, 'ready' FROM finishes
 WHERE should - finished - over - over_dead <> 0
 UNION ALL
SELECT 0, -over_dead, task_type, 'dead' FROM finishes WHERE over_dead > 0`

// A key may name a task that is gone, which means nothing, but no task that has another key: an
// Enqueue would find it waiting, and be skipped.
const wrongKey = `EXISTS (SELECT 1 FROM outbox.task t WHERE t.task_id = k.task_id
   AND (t.task_type <> k.task_type OR t.unique_key IS DISTINCT FROM k.key))`

// Tasks whose key no task holds, by key. A task that was attempted may have lost its key to a newer
// one, so of several tasks the one without an attempt is the holder. Else it is a conflict.
const keylessSQL = `
WITH keyless AS MATERIALIZED (
  SELECT task_type, unique_key, array_agg(task_id ORDER BY task_id) AS ids,
         CASE WHEN count(*) = 1 THEN max(task_id)
              WHEN count(*) FILTER (WHERE attempted_at IS NULL) = 1
              THEN max(task_id) FILTER (WHERE attempted_at IS NULL) END AS holder
    FROM outbox.task t
   WHERE unique_key IS NOT NULL
     AND NOT EXISTS (SELECT 1 FROM outbox.unique_key k JOIN outbox.task h ON h.task_id = k.task_id
                      WHERE k.task_type = t.task_type AND k.key = t.unique_key
                        AND h.task_type = k.task_type AND h.unique_key = k.key)
   GROUP BY task_type, unique_key)`

const findKeysSQL = `/* outbox: tasks without their unique key, and keys of other tasks */` + keylessSQL + `
SELECT task_type || ': tasks without their key', count(*), 0, '' FROM keyless
 WHERE holder IS NOT NULL GROUP BY task_type
 UNION ALL
SELECT k.task_type || ': keys of other tasks', count(*), 0, '' FROM outbox.unique_key k
 WHERE ` + wrongKey + ` GROUP BY k.task_type
 UNION ALL
(SELECT task_type, cardinality(ids), 1,
        'the tasks ' || array_to_string(ids[1:5], ', ') || ' have one unique key, and none holds it: cancel all but one'
   FROM keyless WHERE holder IS NULL ORDER BY task_type, ids LIMIT 100)
 ORDER BY 1, 4`

const keylessPageSQL = `/* outbox: a page of tasks without their unique key */` + keylessSQL + `
SELECT task_type, unique_key, holder FROM keyless WHERE holder IS NOT NULL ORDER BY task_type, unique_key LIMIT $1`

const lockWrongKeysSQL = `/* outbox: lock unique keys of other tasks */
SELECT k.ctid::text FROM outbox.unique_key k WHERE ` + wrongKey + ` LIMIT $1 FOR UPDATE OF k SKIP LOCKED`

// Seen from here, after the lock, the key is as it is now.
const deleteWrongKeysSQL = `/* outbox: delete unique keys of other tasks */
DELETE FROM outbox.unique_key k WHERE k.ctid = ANY ($1::tid[]) AND ` + wrongKey

const lockGoneKeysSQL = `/* outbox: lock unique keys of tasks that are gone */
SELECT k.ctid::text FROM outbox.unique_key k
  JOIN unnest($1::text[], $2::text[]) AS n (task_type, key) ON k.task_type = n.task_type AND k.key = n.key
 WHERE (SELECT t.task_id FROM outbox.task t WHERE t.task_id = k.task_id) IS NULL FOR UPDATE OF k SKIP LOCKED`

// A key that an Enqueue has taken meanwhile stays that task's.
const giveKeysSQL = `/* outbox: give tasks their unique keys */
INSERT INTO outbox.unique_key (task_type, key, task_id)
SELECT task_type, key, task_id FROM unnest($1::text[], $2::text[], $3::bigint[]) AS n (task_type, key, task_id)
 ORDER BY task_type COLLATE "C", key COLLATE "C"
    ON CONFLICT DO NOTHING`

const headlessSQL = `
  FROM (SELECT DISTINCT t.task_type, t.ordering_key FROM outbox.task t
         WHERE t.state = 'waiting'
           AND NOT EXISTS (SELECT 1 FROM outbox.task h
                            WHERE h.task_type = t.task_type AND h.ordering_key = t.ordering_key
                              AND h.state <> 'waiting')
           AND NOT EXISTS (SELECT 1 FROM outbox.headless_key k
                            WHERE k.task_type = t.task_type AND k.ordering_key = t.ordering_key)) AS lost`

const findHeadlessSQL = `/* outbox: ordering keys that nobody promotes */
SELECT task_type, count(*), 0, ''` + headlessSQL + ` GROUP BY task_type ORDER BY task_type`

const addHeadlessSQL = `/* outbox: ask for heads of ordering keys */
INSERT INTO outbox.headless_key (task_type, ordering_key) SELECT task_type, ordering_key` + headlessSQL

const findLeasesSQL = `/* outbox: leases of relays that have no row */
SELECT task_type, count(*), 0, '' FROM outbox.task t
 WHERE state = 'leased' AND NOT EXISTS (SELECT 1 FROM outbox.relay l WHERE l.relay_id = t.relay_id)
 GROUP BY task_type ORDER BY task_type`

// A run or a request that is older than its task belongs to an earlier task. The time of a task that
// is from the future, of a clock that was ahead, says nothing.
const (
	earlierRun = `t.task_id = r.task_id AND r.task_ids IS NULL
           AND r.started_at < t.created_at AND t.created_at <= now()`
	earlierCancel = `t.task_id = c.task_id AND c.requested_at < t.created_at AND t.created_at <= now()`
)

const findLeftoversSQL = `/* outbox: what is left of earlier tasks */
SELECT task_type, count(*), 0, ''
  FROM (SELECT t.task_type FROM outbox.running r JOIN outbox.task t ON ` + earlierRun + `
         UNION ALL SELECT t.task_type FROM outbox.cancel c JOIN outbox.task t ON ` + earlierCancel + `) AS l
 GROUP BY task_type ORDER BY task_type`

const deleteLeftoversSQL = `/* outbox: delete what is left of earlier tasks */
WITH runs AS (DELETE FROM outbox.running r USING outbox.task t WHERE ` + earlierRun + `)
DELETE FROM outbox.cancel c USING outbox.task t WHERE ` + earlierCancel

const findTaskIDsSQL = `/* outbox: tasks with ids of other tasks */
SELECT n.name, cardinality(n.ids), 0,
       'the tasks ' || array_to_string(n.ids[1:5], ', ')
         || CASE WHEN cardinality(n.ids) > 5 THEN ' and others' ELSE '' END || n.text
  FROM (SELECT 'dead_task' AS name,
               ARRAY(SELECT task_id FROM outbox.task JOIN outbox.dead_task USING (task_id) ORDER BY task_id) AS ids,
               ' have the ids of dead letters: let them finish before these are redriven, or purge these' AS text
         UNION ALL
        SELECT 'done_task',
               ARRAY(SELECT task_id FROM outbox.task JOIN outbox.done_task USING (task_id) ORDER BY task_id),
               ' have the ids of finished tasks: a type that keeps its tasks cannot finish them before these '
                 || 'leave the history') AS n
 WHERE cardinality(n.ids) > 0`
