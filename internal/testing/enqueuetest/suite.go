package enqueuetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/internal/wake"
)

// Run runs the test over each client, one after the other, as it counts wake-ups of the process. The
// clients are of a pool on the migrated database of the URL, which is the test's own.
func Run(t *testing.T, url string, clients ...Client) {
	t.Helper()
	first, db := reference(t, url)
	want := inserted(t, db, first)
	for _, c := range clients {
		t.Run(c.Name, func(t *testing.T) {
			t.Run("each_option_stores_the_row_of_a_sql.Tx", func(t *testing.T) {
				got := inserted(t, db, c)
				for i, row := range want {
					if i >= len(got) || got[i] != row {
						t.Fatalf("row %d of %d:\n got %.900s\nwant %.900s", i, len(want), at(got, i), row)
					}
				}
				if len(got) != len(want) {
					t.Errorf("%d rows, want %d", len(got), len(want))
				}
			})
			t.Run("refused_input_sends_nothing", func(t *testing.T) { refuses(t, db, c) })
			t.Run("a_unique_key_is_created_updated_or_skipped", func(t *testing.T) { outcomes(t, c) })
			t.Run("EnqueueMany_has_its_order", func(t *testing.T) { order(t, db, c) })
			t.Run("a_rollback_leaves_nothing", func(t *testing.T) { rollsBack(t, db, c) })
			t.Run("errors_of_PostgreSQL_are_wrapped", func(t *testing.T) { wraps(t, db, c) })
			t.Run("Cancel_RunNow_and_Stats_work_on_it", func(t *testing.T) { changes(t, c) })
			if c.InTx != nil {
				t.Run("InTx_commits_and_wakes_or_rolls_back", func(t *testing.T) { inTx(t, db, c) })
			}
		})
	}
}

func at(rows []string, i int) string {
	if i < len(rows) {
		return rows[i]
	}
	return "no row"
}

func begin(t *testing.T, c Client) Tx {
	t.Helper()
	tx, err := c.Begin(t.Context())
	relaytest.Must(err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

var number atomic.Int64

func newType() string { return fmt.Sprintf("CONFORMS_%d", number.Add(1)) }

type payload struct {
	ID   int64    `json:"id"`
	Text string   `json:"text,omitempty"`
	List []string `json:"list,omitempty"`
}

var (
	later = time.Date(2999, 12, 31, 23, 59, 59, 123456789, time.FixedZone("", 3600))
	odd   = "Ünï \"'\\{},NULL <&>\u2028😀\n\x01\t$1"
)

// tasks are of each option, of values that quoting or casting may break, and of combinations.
func tasks(name string) (all []outbox.TaskSpec) {
	add := func(payload any, opts ...outbox.Option) {
		all = append(all, outbox.TaskSpec{Type: name, Payload: payload, Options: opts})
	}
	for _, p := range []any{nil, 1, -0.5, "", odd, true, []int{}, payload{7, odd, []string{"NULL", "", "{}", odd}},
		json.RawMessage("\n{\n \"a\": 1,\r\n\"b\": [\n]}\n"), json.RawMessage(`"\u000a"`),
		strings.Repeat("x\n", 50_000)} {
		add(p)
	}
	add(1, outbox.Priority(math.MinInt16), outbox.MaxAttempts(1))
	add(1, outbox.Priority(math.MaxInt16), outbox.MaxAttempts(math.MaxInt16))
	add(1, outbox.RunAt(later))
	add(1, outbox.RunAt(time.Date(-50, 1, 1, 0, 0, 0, 0, time.UTC)))
	add(1, outbox.After(time.Hour))
	add(1, outbox.Headers(map[string]string{odd: odd, "": "empty", "empty": ""}),
		outbox.AddHeaders(map[string]string{"b": "2"}))
	add(1, outbox.Timeout(1500*time.Millisecond))
	add(1, outbox.OrderedBy(odd))
	add(1, outbox.OrderedBy("NULL"), outbox.SkipFailed())
	add(1, outbox.GroupBy(odd))
	add(1, outbox.ExpiresAt(later))
	add(1, outbox.RunAt(later), outbox.ExpiresAfter(time.Hour))
	add(1, outbox.After(time.Hour), outbox.ExpiresAfter(time.Hour))
	add(1, outbox.MaxPayload(10))
	add(1, outbox.Unique(odd))
	add(1, outbox.Unique("until done", outbox.UntilDone()), outbox.OnConflict(outbox.ConflictReplace))
	add(1, outbox.Unique("for", outbox.For(time.Hour)), outbox.OnConflict(outbox.ConflictReschedule))
	add(payload{8, odd, nil}, outbox.UniquePayload())
	add(1, outbox.Unique("all"), outbox.Priority(2), outbox.MaxAttempts(3), outbox.RunAt(later),
		outbox.Headers(map[string]string{"a": odd}), outbox.Timeout(2*time.Second), outbox.OrderedBy("k"),
		outbox.SkipFailed(), outbox.ExpiresAt(later.Add(time.Hour)))
	return all
}

// rowsSQL is all columns of tasks, and their keys, in the order of their ids. A time that the clock
// gave is told in minutes from created_at, and one of the tests as it is.
var rowsSQL = `SELECT jsonb_strip_nulls(to_jsonb(t)
         - '{task_id,task_type,created_at,run_at,expires_at,unique_until}'::text[])::text
       || ' run ' || ` + timeSQL("run_at") + ` || ' expires ' || ` + timeSQL("expires_at") + `
       || ' unique ' || ` + timeSQL("unique_until") + `
  FROM outbox.task t WHERE task_type = $1 ORDER BY task_id`

func timeSQL(column string) string {
	return fmt.Sprintf(`coalesce(CASE WHEN %[1]s NOT BETWEEN '2000-01-01' AND '2900-01-01'
		THEN (%[1]s AT TIME ZONE 'UTC')::text
		ELSE round(extract(epoch FROM %[1]s - created_at) / 60)::text END, 'never')`, column)
}

// inserted are the rows of all tasks, enqueued alone, and all in one call, of which the tasks with
// unique keys are the second statement.
func inserted(t *testing.T, db *relaytest.Database, c Client) (rows []string) {
	t.Helper()
	for _, many := range []bool{false, true} {
		name, tx := newType(), begin(t, c)
		if all := tasks(name); many {
			_, err := tx.enqueueMany(t.Context(), all)
			relaytest.Must(err)
		} else {
			for i, task := range all {
				if _, err := tx.enqueue(t.Context(), task); err != nil {
					t.Fatalf("task %d: %v", i, err)
				}
			}
		}
		relaytest.Must(tx.Commit())
		rows = append(rows, stored(t, db, name)...)
	}
	return rows
}

func stored(t *testing.T, db *relaytest.Database, name string) (rows []string) {
	t.Helper()
	found, err := db.QueryContext(t.Context(), rowsSQL, name)
	relaytest.Must(err)
	defer found.Close()
	for found.Next() {
		var row string
		relaytest.Must(found.Scan(&row))
		rows = append(rows, row)
	}
	relaytest.Must(found.Err())
	return rows
}

func count(t *testing.T, db *relaytest.Database, name string) int {
	t.Helper()
	return db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_type = $1`, name)
}

// refuses checks an input of each error. The list of all is that of outbox.TestRefusedInput.
func refuses(t *testing.T, db *relaytest.Database, c Client) {
	name, tx := newType(), begin(t, c)
	good, large := outbox.TaskSpec{Type: name}, strings.Repeat("x", 256<<10)
	with := func(o ...outbox.Option) outbox.TaskSpec { return outbox.TaskSpec{Type: name, Options: o} }
	for text, r := range map[string]struct {
		task outbox.TaskSpec
		want error
	}{
		"it is empty":            {outbox.TaskSpec{}, outbox.ErrInvalidType},
		"does not print":         {outbox.TaskSpec{Type: "A\x00"}, outbox.ErrInvalidType},
		"invalid payload":        {outbox.TaskSpec{Type: name, Payload: json.RawMessage("{")}, outbox.ErrInvalidPayload},
		"payload too large":      {outbox.TaskSpec{Type: name, Payload: large}, outbox.ErrPayloadTooLarge},
		"an Option is nil":       {with(nil), outbox.ErrInvalidOption},
		"Priority(40000)":        {with(outbox.Priority(40_000)), outbox.ErrInvalidOption},
		"Unique: the key":        {with(outbox.Unique("")), outbox.ErrInvalidOption},
		"SkipFailed: only":       {with(outbox.SkipFailed()), outbox.ErrInvalidOption},
		`Schema("Bad")`:          {with(outbox.Schema("Bad")), outbox.ErrInvalidOption},
		"OnConflict(replace): i": {with(outbox.OnConflict(outbox.ConflictReplace)), outbox.ErrInvalidOption},
	} {
		_, alone := tx.enqueue(t.Context(), r.task)
		_, among := tx.enqueueMany(t.Context(), []outbox.TaskSpec{good, r.task, good})
		for _, err := range []error{alone, among} {
			if !errors.Is(err, r.want) || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: got %v, want %v", text, err, r.want)
			}
		}
		if among != nil && !strings.Contains(among.Error(), "task 1 of 3") {
			t.Errorf("%s: got %v, want it to say task 1 of 3", text, among)
		}
	}
	if got, err := tx.enqueueMany(t.Context(), nil); got != nil || err != nil {
		t.Errorf("no tasks: %v, %v", got, err)
	}
	_, err := tx.enqueue(t.Context(), good) // the transaction is usable
	relaytest.Must(errors.Join(err, tx.Commit()))
	if n := count(t, db, name); n != 1 {
		t.Errorf("%d tasks, want 1", n)
	}
}

func outcomes(t *testing.T, c Client) {
	name, tx := newType(), begin(t, c)
	enqueue := func(opts ...outbox.Option) outbox.Enqueued {
		t.Helper()
		opts = append(opts, outbox.Unique("k"))
		got, err := tx.enqueue(t.Context(), outbox.TaskSpec{Type: name, Payload: 1, Options: opts})
		relaytest.Must(err)
		return got
	}
	first := enqueue()
	for _, r := range []struct {
		opts []outbox.Option
		want outbox.Outcome
	}{
		{nil, outbox.OutcomeSkipped},
		{[]outbox.Option{outbox.OnConflict(outbox.ConflictReplace), outbox.Priority(3)}, outbox.OutcomeUpdated},
		{[]outbox.Option{outbox.OnConflict(outbox.ConflictReschedule), outbox.After(time.Hour)}, outbox.OutcomeUpdated},
	} {
		if got, want := enqueue(r.opts...), (outbox.Enqueued{ID: first.ID, Outcome: r.want}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if first.Outcome != outbox.OutcomeCreated || first.ID == 0 {
		t.Errorf("the first is %+v, want a created one", first)
	}
	relaytest.Must(tx.Commit())
}

// order mixes tasks with unique keys, some of them taken, with others without: two statements.
func order(t *testing.T, db *relaytest.Database, c Client) {
	name, tx := newType(), begin(t, c)
	all := make([]outbox.TaskSpec, 300)
	for i := range all {
		all[i] = outbox.TaskSpec{Type: name, Payload: i}
		if i%3 == 0 {
			all[i].Options = []outbox.Option{outbox.Unique(fmt.Sprint("k", i%150))}
		}
	}
	got, err := tx.enqueueMany(t.Context(), all)
	relaytest.Must(errors.Join(err, tx.Commit()))
	if len(got) != len(all) {
		t.Fatalf("%d results, want %d", len(got), len(all))
	}
	ids := map[int64]int{}
	for i, e := range got {
		want, of := outbox.OutcomeCreated, i
		if i%3 == 0 && i >= 150 {
			want, of = outbox.OutcomeSkipped, i%150
		}
		if payload := db.Text(t, `SELECT payload FROM outbox.task WHERE task_id = $1`, e.ID); e.Outcome != want ||
			payload != fmt.Sprint(of) {
			t.Fatalf("task %d is %+v with the payload %s, want %s with %d", i, e, payload, want, of)
		}
		ids[e.ID]++
	}
	if len(ids) != count(t, db, name) {
		t.Errorf("%d ids of %d tasks", len(ids), count(t, db, name))
	}
	var plain []int64
	for i, e := range got {
		if i%3 != 0 {
			plain = append(plain, e.ID)
		}
	}
	if !slices.IsSorted(plain) {
		t.Errorf("the ids do not ascend: %v", plain)
	}
}

func rollsBack(t *testing.T, db *relaytest.Database, c Client) {
	name, tx := newType(), begin(t, c)
	_, one := tx.enqueue(t.Context(), outbox.TaskSpec{Type: name})
	_, many := tx.enqueueMany(t.Context(), []outbox.TaskSpec{{Type: name}, {Type: name}})
	relaytest.Must(errors.Join(one, many))
	var within int
	relaytest.Must(tx.Querier.QueryRowContext(t.Context(),
		`SELECT count(*) FROM outbox.task WHERE task_type = $1`, name).Scan(&within))
	if outside := count(t, db, name); within != 3 || outside != 0 {
		t.Errorf("the transaction sees %d tasks and others %d, want 3 and 0", within, outside)
	}
	relaytest.Must(tx.Rollback())
	if n := count(t, db, name); n != 0 {
		t.Errorf("%d tasks after the rollback", n)
	}
	if _, err := tx.enqueue(t.Context(), outbox.TaskSpec{Type: name}); err == nil {
		t.Error("a transaction that has ended enqueues")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	other := begin(t, c)
	// On a *sql.Conn lib/pq may have sent the statement. The error is PostgreSQL's or the connection's then.
	if _, err := other.enqueue(ended, outbox.TaskSpec{Type: name}); err == nil {
		t.Error("a task is enqueued by a context that has ended")
	}
	_ = other.Rollback() // of what the driver may have broken
	if n := count(t, db, name); n != 0 {
		t.Errorf("%d tasks of a context that has ended", n)
	}
}

// wraps checks the error of the first statement that fails, and of those after it.
func wraps(t *testing.T, db *relaytest.Database, c Client) {
	name, tx := newType(), begin(t, c)
	db.Do(t, `ALTER TABLE outbox.task ADD CONSTRAINT refused CHECK (task_type <> '`+name+`' OR priority = 0)`)
	defer db.Do(t, `ALTER TABLE outbox.task DROP CONSTRAINT refused`)
	_, err := tx.enqueue(t.Context(), outbox.TaskSpec{Type: name, Options: []outbox.Option{outbox.Priority(1)}})
	if pgerr.Code(err) != "23514" || !strings.HasPrefix(err.Error(), "outbox: enqueue "+name+": ") {
		t.Errorf("got %v, want 23514 of the constraint", err)
	}
	_, err = tx.enqueueMany(t.Context(), []outbox.TaskSpec{{Type: name}, {Type: name}})
	// On a *sql.Conn the transaction is looked for first.
	if pgerr.Code(err) != "25P02" || !strings.HasPrefix(err.Error(), "outbox: ") || outbox.IsSerializationFailure(err) {
		t.Errorf("got %v, want 25P02", err)
	}
	_ = tx.Rollback()
	conflict := begin(t, c)
	_, err = conflict.Querier.ExecContext(t.Context(),
		`DO $$ BEGIN RAISE 'no' USING ERRCODE = '40001'; END $$`)
	if !outbox.IsSerializationFailure(fmt.Errorf("book: %w", err)) {
		t.Errorf("got %v, want a serialization failure", err)
	}
}

func changes(t *testing.T, c Client) {
	name, tx := newType(), begin(t, c)
	e, err := outbox.NewTaskType[int](name).Enqueue(t.Context(), tx.Querier, 1, outbox.After(time.Hour))
	relaytest.Must(err)
	ready := func() (s outbox.TypeStats) {
		t.Helper()
		all, err := outbox.Stats(t.Context(), tx.Querier)
		relaytest.Must(err)
		i := slices.IndexFunc(all, func(s outbox.TypeStats) bool { return s.Type == name })
		if i < 0 {
			t.Fatalf("no counts of %s in %+v", name, all)
		}
		return all[i]
	}
	if s := ready(); s.Scheduled != 1 || time.Until(s.NextRunAt) < time.Minute {
		t.Errorf("got %+v, want a scheduled task", s)
	}
	if got, err := outbox.RunNow(t.Context(), tx.Querier, e.ID); got != outbox.RunNowDue || err != nil {
		t.Errorf("RunNow: %v, %v", got, err)
	}
	if s := ready(); s.Ready != 1 || s.Scheduled != 0 {
		t.Errorf("got %+v, want a ready task", s)
	}
	if got, err := outbox.Cancel(t.Context(), tx.Querier, e.ID); got != outbox.CancelRemoved || err != nil {
		t.Errorf("Cancel: %v, %v", got, err)
	}
	if got, err := outbox.Cancel(t.Context(), tx.Querier, e.ID); got != outbox.CancelNotFound || err != nil {
		t.Errorf("Cancel again: %v, %v", got, err)
	}
}

func inTx(t *testing.T, db *relaytest.Database, c Client) {
	limit, stop := context.WithTimeout(t.Context(), time.Minute) // where connections are not given back
	defer stop()
	var wakes atomic.Int64
	visible := -1
	name := newType()
	remove := wake.Register(func() { wakes.Add(1); visible = count(t, db, name) })
	defer remove()
	enqueue := func(tx Tx) error {
		_, err := tx.enqueue(t.Context(), outbox.TaskSpec{Type: name})
		return err
	}
	relaytest.Must(c.InTx(limit, enqueue))
	if wakes.Load() != 1 || visible != 1 {
		t.Errorf("%d wake-ups that saw %d tasks, want 1 and 1", wakes.Load(), visible)
	}
	failed := errors.New("no")
	ctx, cancel := context.WithCancel(limit)
	defer cancel()
	for about, e := range map[string]struct {
		end  func() error
		want any
	}{
		"an error":      {func() error { return failed }, failed},
		"a panic":       {func() error { panic(failed) }, failed},
		"Goexit":        {func() error { runtime.Goexit(); return nil }, "Goexit"},
		"the context":   {func() error { cancel(); return nil }, context.Canceled},
		"and once more": {func() error { t.Error("called"); return nil }, context.Canceled},
	} {
		of := limit
		switch about {
		case "the context":
			of = ctx
		case "and once more":
			var end context.CancelFunc
			of, end = context.WithCancel(of)
			end()
		}
		done := make(chan any, 1)
		go func() {
			var got any = "Goexit"
			defer func() {
				if p := recover(); p != nil {
					got = p
				}
				done <- got
			}()
			got = c.InTx(of, func(tx Tx) error {
				if about != "and once more" {
					relaytest.Must(enqueue(tx))
				}
				return e.end()
			})
		}()
		if got := <-done; got != e.want {
			t.Errorf("%s: got %v, want %v", about, got, e.want)
		}
	}
	if n := count(t, db, name); n != 1 || wakes.Load() != 1 {
		t.Errorf("%d tasks and %d wake-ups, want 1 and 1", n, wakes.Load())
	}
	hidden := c.InTx(limit, func(tx Tx) error {
		_, _ = tx.Querier.ExecContext(t.Context(), `SELECT 1/0`)
		return nil
	})
	if hidden == nil || errors.Is(hidden, outbox.ErrCommitUnknown) ||
		!strings.HasPrefix(hidden.Error(), "outbox: commit: ") {
		t.Errorf("a failed transaction: got %v, want a commit that failed", hidden)
	}
}
