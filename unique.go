package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/lib/pq"
)

// payloadKey stands for the key that the database makes of the payload, and begins those keys.
const payloadKey = "$payload"

// uniqueKey is what Unique and its kin ask for.
type uniqueKey struct {
	key       string // "" if it is made of the payload
	ofPayload bool
	untilDone bool
}

// Unique allows at most one waiting task of this type with the key, at any time. A task waits while it
// is due, scheduled, or about to be retried. When its run begins the key is free, so that an Enqueue
// during the run makes a second task, which sees what the first one may not have seen: whether an
// Enqueue created a task or found one, a run will start after its transaction has committed.
//
// If the key is taken no task is created; the OnConflict options say what happens to the one that has
// it, and [Enqueued] what happened. A run that fails is retried, and has its key again unless a newer
// task took it meanwhile; then both will run, and the newer one has the key.
//
// The key is 1 to 256 bytes of valid UTF-8 without NUL and must not begin with "$payload". Keys of
// different task types are different. Of the four Unique options the last one counts. The tasks of one
// key should be enqueued with the same option: what a key's task does with it is its own option's.
//
// Enqueue never waits for a handler, nor a handler's claim for it. Two open transactions that enqueue the same
// key wait for each other: the second until the first has ended. So transactions that enqueue several
// keys in several calls, in different orders, can deadlock like any that update rows in different orders
// (PostgreSQL ends one with 40P01); a single EnqueueMany sorts its keys and cannot. A handler's own keyed enqueues come
// best at its end. Above READ COMMITTED a keyed Enqueue can fail with 40001, and the transaction is to be repeated.
//
// The database role needs INSERT on the view keyed_task of the outbox's schema and SELECT on its columns task_id, outcome and
// position, and no right on its tables.
func Unique(key string) Option { return func(s *settings) { s.unique = &uniqueKey{key: key} } }

// UniqueUntilDone is [Unique] for a key that its task keeps while it runs and through its retries,
// until it is done, dead or cancelled. A running task is never changed: an Enqueue then finds it
// and is Skipped, whatever the OnConflict option, and no further run starts on its account.
//
// The transaction that removes the task, a Tx or Batch handler's or that of Task.Complete, is the
// exception: there the key is free, and an Enqueue creates the task that follows. If the handler's
// result is that its own task goes on, as by handlers.RunAgain, that task keeps the key and the
// created one is dropped with the commit.
func UniqueUntilDone(key string) Option {
	return func(s *settings) { s.unique = &uniqueKey{key: key, untilDone: true} }
}

// UniquePayload is [Unique] with a key that PostgreSQL makes of the payload: "$payload:" and a SHA-256. Payloads that are
// equal as jsonb have the same key, however they are written: white space, the order of object keys, repeated
// keys, escapes, and 1.50 or 15e-1 for 1.5 make no difference.
func UniquePayload() Option {
	return func(s *settings) { s.unique = &uniqueKey{ofPayload: true} }
}

// UniquePayloadUntilDone is [UniqueUntilDone] with the key of [UniquePayload].
func UniquePayloadUntilDone() Option {
	return func(s *settings) { s.unique = &uniqueKey{ofPayload: true, untilDone: true} }
}

// conflict is what becomes of the task that has the key already.
type conflict int

const (
	conflictSkip conflict = iota
	conflictReplace
	conflictReschedule
)

// String is the option's name.
func (c conflict) String() string {
	return [...]string{"OnConflictSkip", "OnConflictReplace", "OnConflictReschedule"}[c]
}

// column is the value for keyed_task.on_conflict.
func (c conflict) column() string { return [...]string{"skip", "replace", "reschedule"}[c] }

// OnConflictSkip leaves the task that has the key as it is. It is the default.
func OnConflictSkip() Option { return func(s *settings) { s.onConflict = conflictSkip } }

// OnConflictReplace gives the waiting task that has the key this Enqueue's payload, headers, due time and
// priority. It keeps its id, attempts, max attempts and last error.
func OnConflictReplace() Option { return func(s *settings) { s.onConflict = conflictReplace } }

// OnConflictReschedule gives the waiting task that has the key this Enqueue's due time and nothing else.
// With [After] it is a debounce: the task runs once nothing has been enqueued under its key for so long.
func OnConflictReschedule() Option { return func(s *settings) { s.onConflict = conflictReschedule } }

// Outcome is what came of an Enqueue with a unique key. The zero value is Created.
type Outcome int

// The outcomes.
const (
	Created Outcome = iota // a new task
	Updated                // the waiting task that has the key was replaced or rescheduled
	Skipped                // the task that has the key stays as it is
)

// String is created, updated or skipped.
func (o Outcome) String() string {
	switch o {
	case Created:
		return "created"
	case Updated:
		return "updated"
	case Skipped:
		return "skipped"
	}
	return fmt.Sprintf("Outcome(%d)", int(o))
}

func (u *uniqueKey) check() error {
	switch {
	case u == nil || u.ofPayload:
		return nil
	case u.key == "":
		return fmt.Errorf("%w: Unique: the key is empty", ErrInvalidOption)
	case len(u.key) > maxKeyBytes:
		return fmt.Errorf("%w: Unique(%.32q…): %d bytes, at most %d", ErrInvalidOption, u.key, len(u.key), maxKeyBytes)
	case !storable(u.key):
		return fmt.Errorf("%w: Unique(%q): a key must be valid UTF-8 without NUL", ErrInvalidOption, u.key)
	case strings.HasPrefix(u.key, payloadKey):
		return fmt.Errorf("%w: Unique(%q): keys that begin with %s are those of UniquePayload", ErrInvalidOption, u.key, payloadKey)
	}
	return nil
}

// The keys are locked in one order, whatever the order of the tasks. Equal payloads are neighbours as jsonb, so their keys need
// not be known. Of one key's tasks the first comes first.
const insertKeyedSQL = `/* outbox: enqueue with unique keys */
INSERT INTO "%s".keyed_task (position, task_type, payload, unique_key, unique_until_done, on_conflict%s)
SELECT position, task_type, payload::jsonb, unique_key, unique_until_done::boolean, on_conflict%s
  FROM (SELECT %s, generate_series(1, $3::integer) AS position, unnest($4::text[]) AS unique_key,
               unnest($5::text[]) AS unique_until_done, unnest($6::text[]) AS on_conflict%s) AS n
 ORDER BY unique_key IS NOT NULL, CASE WHEN unique_key IS NOT NULL THEN task_type END COLLATE "C", unique_key COLLATE "C",
       CASE WHEN unique_key = '` + payloadKey + `' THEN payload::jsonb END, position
RETURNING position, task_id, outcome`

// insertKeyed inserts tasks of which some have a unique key.
func insertKeyed(ctx context.Context, tx Querier, tasks []row, payloads *lines) ([]Enqueued, error) {
	fail := func(err error) ([]Enqueued, error) {
		if len(tasks) == 1 {
			return nil, fmt.Errorf("outbox: enqueue %s: %w", tasks[0].taskType, err)
		}
		return nil, fmt.Errorf("outbox: enqueue %d tasks: %w", len(tasks), err)
	}
	n := len(tasks)
	keys, untilDone, onConflict := make([]sql.NullString, n), make([]bool, n), make([]string, n)
	for i, r := range tasks {
		if r.unique != nil {
			keys[i], untilDone[i] = sql.NullString{String: r.unique.key, Valid: true}, r.unique.untilDone
			if r.unique.ofPayload {
				keys[i].String = payloadKey
			}
		}
		onConflict[i] = r.onConflict.column()
	}
	args, columns := typesAndPayloads(tasks, payloads)
	args, optional := optionalMany(append(args, n, pq.Array(keys), pq.Array(untilDone), pq.Array(onConflict)), tasks)
	statement := fmt.Sprintf(insertKeyedSQL, tasks[0].schema, optional.names, optional.values, columns, optional.arrays)
	rows, err := tx.QueryContext(ctx, statement, args...)
	if err != nil {
		return fail(err)
	}
	defer rows.Close()
	out := make([]Enqueued, n)
	for rows.Next() {
		var position int
		var id sql.NullInt64
		var outcome sql.NullString
		if err := rows.Scan(&position, &id, &outcome); err != nil {
			return fail(err)
		}
		if !id.Valid {
			return fail(fmt.Errorf("task %d was not inserted: is there a trigger on the task table that drops rows?", position-1))
		}
		out[position-1] = Enqueued{TaskID: id.Int64, Outcome: outcomes[outcome.String]}
	}
	if err := rows.Err(); err != nil {
		return fail(err)
	}
	return out, nil
}

var outcomes = map[string]Outcome{"created": Created, "updated": Updated, "skipped": Skipped}
