package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/internal/wake"
)

// DefectKind is the kind of a [Defect].
//
// Experimental: a minor version may change it.
type DefectKind string

// The kinds of defects, in the order in which Repair mends them.
//
// Experimental: a minor version may change them.
const (
	// DefectSequences: a sequence would give an id again, that of a row or of an earlier task.
	DefectSequences DefectKind = "sequence"
	// DefectCounts: the counts of a type differ from its rows.
	DefectCounts DefectKind = "count"
	// DefectUniqueKeys: a task does not hold its unique key, or a key is held by a task that has
	// another one.
	DefectUniqueKeys DefectKind = "unique_key"
	// DefectOrderingKeys: tasks wait, and no relay will look for the head of their key.
	DefectOrderingKeys DefectKind = "ordering_key"
	// DefectGroupKeys: tasks wait for a place of their key, and no relay will look whether one is free.
	DefectGroupKeys DefectKind = "group_key"
	// DefectLeases: a task is leased to a relay that has no row.
	DefectLeases DefectKind = "lease"
	// DefectLeftovers: a lost run, or a request to cancel, belongs to an earlier task with the same id.
	DefectLeftovers DefectKind = "leftover"
	// DefectTaskIDs: a task has the id of a dead letter or of a finished task. Repair leaves it alone.
	DefectTaskIDs DefectKind = "task_id"
)

// Defect is a contradiction between an outbox's tables and its tasks, as after a partial restore or a
// switch-over by logical replication.
//
// Experimental: a minor version may change it.
type Defect struct {
	Kind     DefectKind
	Subject  string // a sequence; a task type, with a state for DefectCounts; a table for DefectTaskIDs
	Is       int64  // the last id of a sequence, the count; else the number of wrong rows
	ShouldBe int64  // as Is
	Conflict string // the decision that Repair leaves to a person; "" if Repair repairs the defect
}

// RepairOptions narrow [Client.Defects] and [Client.Repair]. The zero value means all defects.
//
// Experimental: a minor version may change it.
type RepairOptions struct {
	Kinds []DefectKind // nil: all
	// Above is an id that new tasks must exceed, as the last_value of the old server's sequence
	// task_task_id_seq. 0: the rows tell.
	Above int64
}

func (o RepairOptions) check() error {
	if o.Above < 0 || o.Above > maxAbove {
		return invalid("RepairOptions.Above: %d: must be between 0 and %d", o.Above, int64(maxAbove))
	}
	for _, k := range o.Kinds {
		if !slices.ContainsFunc(repairs, func(r repair) bool { return r.kind == k }) {
			return invalid("RepairOptions.Kinds: there is no kind %q", k)
		}
	}
	return nil
}

const maxAbove = 1 << 62

func (o RepairOptions) has(k DefectKind) bool {
	return len(o.Kinds) == 0 || slices.Contains(o.Kinds, k)
}

// Defects returns the defects that [Client.Repair] repairs, and the conflicts that it leaves to a
// person. It only reads. It finds nothing in a sound outbox, also beside relays: each statement sees
// one snapshot.
//
// It reads all tasks, dead letters and unique keys once or twice, in seconds for millions. It needs
// the rights of a worker. For DefectSequences and DefectCounts those of a viewer suffice.
//
// Experimental: a minor version may change it.
func (c *Client) Defects(ctx context.Context, o RepairOptions) (found []Defect, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	err = c.read(func(q outbox.Querier) error {
		for _, r := range repairs {
			if !o.has(r.kind) {
				continue
			}
			some, err := r.find(ctx, c, q, o)
			if err != nil {
				return fmt.Errorf("%s: %w", r.kind, err)
			}
			found = append(found, some...)
		}
		return nil
	})
	return found, failed("look for defects", err)
}

// Repair repairs the defects that [Client.Defects] returns, and returns them. It leaves conflicts
// alone: a second call returns only these.
//
// Relays and enqueueing go on. Counts are added to the counter log, without a lock. Unique keys are
// locked for one short transaction of up to 500. If another transaction locks a key for longer than
// 500 ms, Repair ends with an error. Its work until then stays, and it may be called again. A lease
// that has no relay is taken over, and only that task is locked.
//
// It needs the rights of a worker; to set sequences, the role must own them. The audit log has an
// entry before it and one after it.
//
// Experimental: a minor version may change it.
func (c *Client) Repair(ctx context.Context, o RepairOptions) (found []Defect, err error) {
	if _, err := c.pool("Repair"); err != nil {
		return nil, err
	}
	if found, err = c.Defects(ctx, o); err != nil {
		return nil, err
	}
	var targets []string
	var todo []repair
	repaired := 0
	for _, r := range repairs {
		n := 0
		for _, d := range found {
			if d.Kind == r.kind && d.Conflict == "" {
				n++
			}
		}
		if n == 0 {
			continue
		}
		todo, targets, repaired = append(todo, r), append(targets, fmt.Sprintf("%s %d", r.kind, n)), repaired+n
	}
	if len(todo) == 0 {
		return found, nil
	}
	if todo[0].kind == DefectSequences { // also that of the audit log
		if err := todo[0].do(ctx, c, o); err != nil {
			return found, err
		}
		todo = todo[1:]
	}
	err = c.audited(ctx, AuditEntry{Action: ActionRepair, Target: strings.Join(targets, ", ")}, func() (int64, error) {
		for _, r := range todo {
			if err := r.do(ctx, c, o); err != nil {
				return 0, err
			}
		}
		return int64(repaired), nil
	})
	wake.All()
	return found, err
}

// repair finds a kind of defects by a query, and repairs them.
type repair struct {
	kind       DefectKind
	findSQL    string                                     // subject, is, should be, conflict
	statements []string                                   // repair them, in one transaction
	run        func(ctx context.Context, c *Client) error // instead, in transactions of its own
}

// args are the arguments of its statements.
func (r repair) args(o RepairOptions) []any {
	if r.kind == DefectSequences {
		return []any{o.Above}
	}
	return nil
}

// find runs the repair's query.
func (r repair) find(ctx context.Context, c *Client, q outbox.Querier, o RepairOptions) ([]Defect, error) {
	return rows(ctx, q, c.schema.SQL(r.findSQL), r.args(o), func(row scanner, d *Defect) error {
		d.Kind = r.kind
		return row.Scan(&d.Subject, &d.Is, &d.ShouldBe, &d.Conflict)
	})
}

// do repairs all defects of the kind.
func (r repair) do(ctx context.Context, c *Client, o RepairOptions) error {
	do := r.run
	if do == nil {
		do = func(ctx context.Context, c *Client) error {
			return c.inTx(ctx, func(q outbox.Querier) error {
				for _, statement := range r.statements { // each sees what is there after the one before
					if _, err := q.ExecContext(ctx, c.schema.SQL(statement), r.args(o)...); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	return failed("repair "+string(r.kind), do(ctx, c))
}

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
                          WHEN 'expired' THEN arrived ELSE arrived - tasks END)::bigint
       FROM (SELECT kind, arrived, tasks FROM outbox.counter
              UNION ALL SELECT kind, arrived, tasks FROM outbox.counter_log) AS c))
   UNION ALL SELECT 'headless_key', 'headless_key_id', GREATEST((SELECT max(headless_key_id) FROM outbox.headless_key),
                                                           (SELECT max(place_request_id) FROM outbox.place_request))
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

// everKinds count what has happened; the other kinds count tasks that are there.
const everKinds = `('failed', 'canceled', 'expired')`

// The counts by type and kind, and the rows. A task that was counted twice, as by a restore with
// triggers, is subtracted from both numbers, if the trigger counted it as new. A task that was not
// counted did not arrive by the counts either. So the number of finished tasks stays, and is at
// least 0.
const countsSQL = `
WITH held AS (
  SELECT task_type, outbox.kind_of(state, attempt) AS kind, count(*) AS n,
         count(*) - count(attempted_at) AS fresh
    FROM outbox.task GROUP BY 1, 2
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
         COALESCE(sum(counted - held) FILTER (WHERE kind <> 'dead' AND kind NOT IN ` + everKinds + `), 0) AS over,
         GREATEST(sum(counted - held) FILTER (WHERE kind = 'dead'), 0) AS over_dead,
         sum(CASE kind WHEN 'dead' THEN -arrived WHEN 'canceled' THEN -counted WHEN 'failed' THEN 0
                       WHEN 'expired' THEN -counted ELSE arrived - counted END) AS finished
    FROM every GROUP BY task_type),
finishes AS MATERIALIZED (
  SELECT task_type, over, over_dead, finished,
         GREATEST(0, finished + over_dead + CASE WHEN over > 0 THEN over - LEAST(over, fresh) ELSE 0 END) AS should
    FROM totals)`

const findCountsSQL = `/* outbox: counts that differ from the rows */` + countsSQL + `
SELECT task_type || ' ' || kind, counted, held, '' FROM every
 WHERE kind NOT IN ` + everKinds + ` AND counted <> held
 UNION ALL
SELECT task_type || ' finished', finished::bigint, should::bigint, '' FROM finishes WHERE finished <> should
 ORDER BY 1`

// Two recounts at once would both add what is missing. The lock holds up no relay and no enqueue.
const lockCountsSQL = `/* outbox: lock the recount */
LOCK TABLE outbox.counter IN SHARE UPDATE EXCLUSIVE MODE`

const addCountsSQL = `/* outbox: add what the counts lack */` + countsSQL + `
INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
SELECT held - counted, 0, task_type, kind FROM every WHERE kind NOT IN ` + everKinds + ` AND counted <> held
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
     AND NOT EXISTS (SELECT 1 FROM outbox.unique_key k LEFT JOIN outbox.task h ON h.task_id = k.task_id
                      WHERE k.task_type = t.task_type AND k.key = t.unique_key
                        AND (k.keep_until > now() OR h.task_type = k.task_type AND h.unique_key = k.key))
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

const headlessSQL = `
  FROM (SELECT DISTINCT t.task_type, t.ordering_key FROM outbox.task t
         WHERE t.state = 'waiting' AND t.ordering_key IS NOT NULL
           AND NOT EXISTS (SELECT 1 FROM outbox.task h
                            WHERE h.task_type = t.task_type AND h.ordering_key = t.ordering_key
                              AND h.state <> 'waiting')
           AND NOT EXISTS (SELECT 1 FROM outbox.headless_key k
                            WHERE k.task_type = t.task_type AND k.ordering_key = t.ordering_key)) AS lost`

const findHeadlessSQL = `/* outbox: ordering keys that nobody promotes */
SELECT task_type, count(*), 0, ''` + headlessSQL + ` GROUP BY task_type ORDER BY task_type`

const addHeadlessSQL = `/* outbox: ask for heads of ordering keys */
INSERT INTO outbox.headless_key (task_type, ordering_key) SELECT task_type, ordering_key` + headlessSQL

const placelessSQL = `
  FROM (SELECT DISTINCT t.task_type, t.group_key FROM outbox.task t
         WHERE t.state = 'waiting' AND t.group_key IS NOT NULL
           AND (SELECT count(*) FROM outbox.task h
                 WHERE h.task_type = t.task_type AND h.group_key = t.group_key AND h.group_place IS NOT NULL)
             < COALESCE((SELECT l.max_running_per_key FROM outbox.task_type l WHERE l.task_type = t.task_type), 1)
           AND NOT EXISTS (SELECT 1 FROM outbox.place_request k
                            WHERE k.task_type = t.task_type AND k.group_key = t.group_key)) AS lost`

const findPlacelessSQL = `/* outbox: group keys that nobody promotes */
SELECT task_type, count(*), 0, ''` + placelessSQL + ` GROUP BY task_type ORDER BY task_type`

const addPlacelessSQL = `/* outbox: ask for places of group keys */
INSERT INTO outbox.place_request (task_type, group_key) SELECT task_type, group_key` + placelessSQL

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

// repairs are all, in their order: ids first, as the audit log needs them.
var repairs = []repair{
	{kind: DefectSequences, findSQL: findSequencesSQL, statements: []string{setSequencesSQL}},
	{kind: DefectCounts, findSQL: findCountsSQL, statements: []string{lockCountsSQL, addCountsSQL}},
	{kind: DefectUniqueKeys, findSQL: findKeysSQL, run: repairKeys},
	{kind: DefectOrderingKeys, findSQL: findHeadlessSQL, statements: []string{addHeadlessSQL}},
	{kind: DefectGroupKeys, findSQL: findPlacelessSQL, statements: []string{addPlacelessSQL}},
	{kind: DefectLeases, findSQL: findLeasesSQL, run: func(ctx context.Context, c *Client) error { // like a takeover
		return c.pages(ctx, upkeep.StrandedSQL, nil, upkeep.TakeStrandedSQL)
	}},
	{kind: DefectLeftovers, findSQL: findLeftoversSQL, statements: []string{deleteLeftoversSQL}},
	{kind: DefectTaskIDs, findSQL: findTaskIDsSQL},
}

const (
	keysAtOnce = 500
	keysRead   = 100_000
	// A deadlock with an app's transaction ends here, before PostgreSQL looks for it after 1 s.
	keyLockSQL = `SET LOCAL lock_timeout = '500ms'`
)

// keyless is a task without its unique key.
type keyless struct {
	taskType, key string
	taskID        int64
}

const lockWrongKeysSQL = `/* outbox: lock unique keys of other tasks */
SELECT k.ctid::text FROM outbox.unique_key k WHERE ` + wrongKey + ` LIMIT $1 FOR UPDATE OF k SKIP LOCKED`

// Seen from here, after the lock, the key is as it is now.
const deleteWrongKeysSQL = `/* outbox: delete unique keys of other tasks */
DELETE FROM outbox.unique_key k WHERE k.ctid = ANY ($1::tid[]) AND ` + wrongKey

const keylessPageSQL = `/* outbox: a page of tasks without their unique key */` + keylessSQL + `
SELECT task_type, unique_key, holder FROM keyless WHERE holder IS NOT NULL ORDER BY task_type, unique_key LIMIT $1`

// repairKeys first deletes the keys of other tasks, which would block the right ones.
func repairKeys(ctx context.Context, c *Client) error {
	if err := c.pages(ctx, lockWrongKeysSQL, []any{maxRows}, deleteWrongKeysSQL); err != nil {
		return err
	}
	for n := keysRead; n == keysRead; {
		all, err := rows(ctx, c.q, c.schema.SQL(keylessPageSQL), []any{keysRead}, func(row scanner, k *keyless) error {
			return row.Scan(&k.taskType, &k.key, &k.taskID)
		})
		if err != nil {
			return err
		}
		n = len(all)
		for some := range slices.Chunk(all, keysAtOnce) {
			if err := c.giveKeys(ctx, some); err != nil {
				return err
			}
		}
	}
	return nil
}

const lockGoneKeysSQL = `/* outbox: lock unique keys of tasks that are gone */
SELECT k.ctid::text FROM outbox.unique_key k
  JOIN unnest($1::text[], $2::text[]) AS n (task_type, key) ON k.task_type = n.task_type AND k.key = n.key
 WHERE (SELECT t.task_id FROM outbox.task t WHERE t.task_id = k.task_id) IS NULL FOR UPDATE OF k SKIP LOCKED`

// A key that an Enqueue has taken meanwhile stays that task's.
const giveKeysSQL = `/* outbox: give tasks their unique keys */
INSERT INTO outbox.unique_key (task_type, key, task_id, keep_until)
SELECT task_type, key, task_id, (SELECT t.unique_until FROM outbox.task t WHERE t.task_id = n.task_id)
  FROM unnest($1::text[], $2::text[], $3::bigint[]) AS n (task_type, key, task_id)
 ORDER BY task_type COLLATE "C", key COLLATE "C"
    ON CONFLICT DO NOTHING`

// giveKeys gives tasks their keys, in one transaction.
func (c *Client) giveKeys(ctx context.Context, tasks []keyless) error {
	var types, keys []string
	var ids []int64
	for _, k := range tasks {
		types, keys, ids = append(types, k.taskType), append(keys, k.key), append(ids, k.taskID)
	}
	return c.inTx(ctx, func(q outbox.Querier) error {
		if _, err := q.ExecContext(ctx, keyLockSQL); err != nil {
			return err
		}
		named := []any{pq.Array(types), pq.Array(keys)}
		if _, err := c.lockAndChange(ctx, q, lockGoneKeysSQL, named, upkeep.DeleteKeysSQL); err != nil {
			return err
		}
		_, err := q.ExecContext(ctx, c.schema.SQL(giveKeysSQL), append(named, pq.Array(ids))...)
		return err
	})
}

// pages locks rows by one statement and changes them by the next, which sees their present state, in
// transactions of up to 1,000 rows each.
func (c *Client) pages(ctx context.Context, lock string, args []any, change string) error {
	for n := maxRows; n == maxRows; {
		err := c.inTx(ctx, func(q outbox.Querier) (err error) {
			n, err = c.lockAndChange(ctx, q, lock, args, change)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lockAndChange returns the number of locked rows. Their ids are the argument of the change.
func (c *Client) lockAndChange(
	ctx context.Context, q outbox.Querier, lock string, args []any, change string,
) (int, error) {
	locked, err := rows(ctx, q, c.schema.SQL(lock), args, func(row scanner, id *string) error { return row.Scan(id) })
	if err != nil || len(locked) == 0 {
		return 0, err
	}
	_, err = q.ExecContext(ctx, c.schema.SQL(change), pq.Array(locked))
	return len(locked), err
}
