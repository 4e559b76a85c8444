package outbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/jmoiron/sqlx"

	"github.com/txoutbox/outbox"
)

// enqueued are the rows of a task that was enqueued with opts, alone and beside another, which are
// different statements.
func (e *env) enqueued(t *testing.T, opts ...outbox.Option) []stored {
	t.Helper()
	name, tx := newType(), e.tx(t)
	defer tx.rollback()
	put(t, tx.Querier, name, nil, opts...)
	putMany(t, tx, outbox.NewTask{Type: name, Options: opts}, outbox.NewTask{Type: "other"})
	return rows(t, tx, name)
}

func TestOptions(t *testing.T) {
	t.Parallel()
	var (
		hour = time.Now().Add(time.Hour)
		last = time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC)
	)
	onEveryClient(t, []contract{
		{"decide_when_a_task_is_due", func(t *testing.T, e *env) {
			for _, c := range []struct {
				about string
				opts  []outbox.Option
				state string
				runAt time.Time // zero: when it was created
			}{
				{"nothing asked", nil, "ready", time.Time{}},
				{"a time to come", []outbox.Option{outbox.RunAt(hour)}, "scheduled", hour},
				{"the same elsewhere", []outbox.Option{outbox.RunAt(hour.In(time.FixedZone("", -7*3600)))}, "scheduled", hour},
				{"a time past", []outbox.Option{outbox.RunAt(hour.Add(-2 * time.Hour))}, "ready", hour.Add(-2 * time.Hour)},
				{"the last second", []outbox.Option{outbox.RunAt(last)}, "scheduled", last},
				{"before the first year", []outbox.Option{outbox.RunAt(time.Date(-50, 1, 1, 0, 0, 0, 0, time.UTC))}, "ready", time.Time{}.Add(1)},
				{"the zero time", []outbox.Option{outbox.RunAt(hour), outbox.RunAt(time.Time{})}, "ready", time.Time{}},
				{"a delay, then a time", []outbox.Option{outbox.After(time.Minute), outbox.RunAt(hour)}, "scheduled", hour},
				{"a delay, then no time", []outbox.Option{outbox.After(time.Hour), outbox.RunAt(time.Time{})}, "ready", time.Time{}},
				{"a time, then no delay", []outbox.Option{outbox.RunAt(hour), outbox.After(0)}, "ready", time.Time{}},
				{"a negative delay", []outbox.Option{outbox.After(math.MinInt64)}, "ready", time.Time{}},
			} {
				for _, got := range e.enqueued(t, c.opts...) {
					want := c.runAt.Truncate(time.Microsecond)
					if c.runAt.IsZero() {
						want = got.CreatedAt
					}
					if got.State != c.state || !got.RunAt.Equal(want) {
						t.Errorf("%s: got %s at %v, want %s at %v", c.about, got.State, got.RunAt, c.state, want)
					}
				}
			}
		}},
		{"After_counts_from_the_insert_by_the_clock_of_the_database", func(t *testing.T, e *env) {
			for _, d := range []time.Duration{time.Microsecond, time.Hour, math.MaxInt64} {
				name, tx := newType(), e.tx(t)
				clock := func() time.Time { return scan[time.Time](t, tx, `SELECT clock_timestamp()`) }
				from := clock() // later than now(), the start of the transaction
				put(t, tx.Querier, name, nil, outbox.After(d))
				task := outbox.NewTask{Type: name, Options: []outbox.Option{outbox.After(d)}}
				putMany(t, tx, task, task)
				until := clock()
				// PostgreSQL multiplies intervals as floating point: in 292 years it is off by a millisecond.
				off := time.Duration(float64(d)/1e15) + time.Microsecond
				for _, got := range rows(t, tx, name) {
					if got.RunAt.Before(from.Add(d-off)) || got.RunAt.After(until.Add(d).Add(off)) || got.State != "scheduled" {
						t.Errorf("After(%v): got %s at %v, want scheduled between %v and %v", d, got.State, got.RunAt, from.Add(d), until.Add(d))
					}
				}
			}
		}},
		{"decide_priority_and_attempts", func(t *testing.T, e *env) {
			for _, c := range []struct {
				about    string
				opts     []outbox.Option
				priority int
				attempts int64 // 0: NULL, as the handler was registered
			}{
				{"nothing asked", nil, 0, 0},
				{"the least", []outbox.Option{outbox.Priority(math.MinInt16), outbox.MaxAttempts(1)}, -32768, 1},
				{"the most", []outbox.Option{outbox.Priority(math.MaxInt16), outbox.MaxAttempts(math.MaxInt16)}, 32767, 32767},
				{"the later of two", []outbox.Option{outbox.Priority(1), outbox.MaxAttempts(2), outbox.Priority(3), outbox.MaxAttempts(0)}, 3, 0},
			} {
				for _, got := range e.enqueued(t, c.opts...) {
					if want := (sql.NullInt64{Int64: c.attempts, Valid: c.attempts > 0}); got.Priority != c.priority || got.MaxAttempts != want || got.Attempt != 0 {
						t.Errorf("%s: got priority %d, max attempts %v, attempt %d; want %d, %v, 0", c.about, got.Priority, got.MaxAttempts, got.Attempt, c.priority, want)
					}
				}
			}
		}},
		{"keep_headers_beside_the_payload", func(t *testing.T, e *env) {
			shared := map[string]string{"a": "1", "b": "1"}
			nasty := map[string]string{"trace": "1-2", "Ünï \"'\\{}": "<&>\u2028😀\n\x01", "": "empty", "empty": ""}
			long := map[string]string{"k": strings.Repeat("\x01", 4<<10-1)}
			for _, c := range []struct {
				opts []outbox.Option
				want map[string]string
			}{
				{[]outbox.Option{outbox.Headers(shared), outbox.AddHeaders(map[string]string{"b": "2", "c": "2"}), outbox.AddHeaders(nil)}, map[string]string{"a": "1", "b": "2", "c": "2"}},
				{[]outbox.Option{outbox.Headers(shared), outbox.Headers(nil)}, nil},
				{[]outbox.Option{outbox.Headers(shared), outbox.Headers(map[string]string{})}, nil},
				{[]outbox.Option{outbox.Headers(shared), outbox.Headers(nasty)}, nasty},
				{[]outbox.Option{outbox.Headers(long)}, long},
			} {
				for _, got := range e.enqueued(t, c.opts...) {
					var read map[string]string
					if got.Headers.Valid {
						if err := json.Unmarshal([]byte(got.Headers.String), &read); err != nil {
							t.Error(err)
						}
					}
					if got.Headers.Valid != (len(c.want) > 0) || !maps.Equal(read, c.want) {
						t.Errorf("got %v, want %q", got.Headers, c.want)
					}
				}
			}
			if len(shared) != 2 || shared["b"] != "1" {
				t.Errorf("the caller's map became %v", shared)
			}
		}},
	})
}

func TestEveryTypeThatEnqueueTakesIsStored(t *testing.T) {
	t.Parallel()
	tasks := []outbox.NewTask{{Type: strings.Repeat("x", 128)}, {Type: strings.Repeat("😀", 32)}}
	name := ""
	for r := range unicode.MaxRune + 1 {
		if unicode.IsPrint(r) {
			name += string(r)
		}
		if len(name) > 124 || r == unicode.MaxRune {
			tasks = append(tasks, outbox.NewTask{Type: name})
			name = ""
		}
	}
	tx := begin(t, newDatabase(t).db)
	for i, got := range putMany(t, tx, tasks...) {
		if i%100 < 2 && one(t, tx, tasks[i].Type).ID != got.TaskID {
			t.Errorf("type %q is not task %d", tasks[i].Type, got.TaskID)
		}
	}
}

// refused is input that Enqueue must refuse before any SQL is sent.
type refused struct {
	about string
	task  outbox.NewTask
	want  error
	text  string // a part of the error
}

func refusals() (all []refused) {
	add := func(about string, task outbox.NewTask, want error, text string) {
		all = append(all, refused{about, task, want, text})
	}
	for about, c := range map[string]struct{ name, text string }{
		"an empty type":         {"", "empty"},
		"an over-long type":     {strings.Repeat("x", 129), "129 bytes"},
		"one in wide letters":   {strings.Repeat("ä", 65), "130 bytes"},
		"a type with a NUL":     {"A\x00", `'\x00'`},
		"a type with a newline": {"A\nB", `'\n'`},
		"a type with a bidi":    {"A\u202eB", `'\u202e'`},
		"a type not in UTF-8":   {"A\xff", "UTF-8"},
	} {
		add(about, outbox.NewTask{Type: c.name}, outbox.ErrInvalidType, c.text)
	}
	for _, c := range []struct {
		option outbox.Option
		text   string
	}{
		{nil, "an Option is nil"},
		{outbox.Priority(math.MaxInt16 + 1), "Priority(32768)"},
		{outbox.Priority(math.MinInt16 - 1), "Priority(-32769)"},
		{outbox.MaxAttempts(-1), "MaxAttempts(-1)"},
		{outbox.MaxAttempts(math.MaxInt16 + 1), "MaxAttempts(32768)"},
		{outbox.Timeout(-1), "Timeout(-1ns): must be between 1ms and 576h0m0s"},
		{outbox.Timeout(time.Millisecond - 1), "Timeout(999.999µs)"},
		{outbox.Timeout(outbox.MaxTimeout + 1), "Timeout(576h0m0.000000001s)"},
		{outbox.MaxPayload(-1), "MaxPayload(-1)"},
		{outbox.MaxPayload(16<<20 + 1), "MaxPayload(16777217)"},
		{outbox.RunAt(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)), "RunAt: the year 10000"},
		{outbox.RunAt(time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -3600))), "RunAt: the year 10000"},
		{outbox.OrderedBy(""), "OrderedBy: the key has 0 bytes"},
		{outbox.OrderedBy(strings.Repeat("k", 257)), "OrderedBy: the key has 257 bytes"},
		{outbox.OrderedBy("a\x00"), "OrderedBy: the key has 2 bytes"},
		{outbox.SkipFailed(), "SkipFailed: only for"},
		{outbox.Schema(""), `Schema("")`},
		{outbox.Schema("Outbox"), `Schema("Outbox")`},
		{outbox.Schema(`a"; DROP TABLE usr; --`), "Schema("},
		{outbox.Schema("1a"), `Schema("1a")`},
		{outbox.Schema("ä"), "Schema("},
		{outbox.Schema(strings.Repeat("s", 64)), "Schema("},
		{outbox.Headers(map[string]string{"k": "secret\x00"}), `Headers: "k"`},
		{outbox.AddHeaders(map[string]string{"k": "secret\x00"}), `Headers: "k"`},
		{outbox.Headers(map[string]string{"k": "secret\xff"}), `Headers: "k"`},
		{outbox.Headers(map[string]string{"\x00": ""}), `Headers: "\x00"`},
		{outbox.Headers(map[string]string{"k": strings.Repeat("x", 4<<10)}), "Headers: 4097 bytes"},
	} {
		add("the option of "+c.text, outbox.NewTask{Type: "T", Options: []outbox.Option{c.option}}, outbox.ErrInvalidOption, c.text)
	}
	for text, opts := range map[string][]outbox.Option{
		"Unique: the key is empty":          {outbox.Unique("")},
		"257 bytes, at most 256":            {outbox.Unique(strings.Repeat("k", 257))},
		"valid UTF-8 without NUL":           {outbox.Unique("a\x00", outbox.UntilDone())},
		"keys that begin with $payload":     {outbox.Unique("$payload:1")},
		"Unique: a UniqueOption is nil":     {outbox.UniquePayload(outbox.UntilDone(), nil)},
		"OnConflict(replace): it needs":     {outbox.OnConflict(outbox.Replace)},
		"OnConflict(reschedule): it needs":  {outbox.OnConflict(outbox.Reschedule)},
		"OnConflict(3): must be Skip, Repl": {outbox.Unique("key"), outbox.OnConflict(3)},
	} {
		add("the options of "+text, outbox.NewTask{Type: "T", Options: opts}, outbox.ErrInvalidOption, text)
	}
	for _, c := range refusedPayloads() {
		add(c.about, outbox.NewTask{Type: "T", Payload: c.payload, Options: c.opts}, c.want, c.text)
	}
	return all
}

// I7.
func TestRefusedInput(t *testing.T) {
	t.Parallel()
	onEveryClient(t, []contract{{"sends_no_SQL_and_leaves_the_transaction_usable", func(t *testing.T, e *env) {
		name, tx := newType(), e.tx(t)
		good := outbox.NewTask{Type: name, Payload: 1}
		for _, c := range refusals() {
			_, alone := outbox.Enqueue(t.Context(), tx, c.task.Type, c.task.Payload, c.task.Options...)
			_, among := outbox.EnqueueMany(t.Context(), tx, []outbox.NewTask{good, c.task, good})
			for _, err := range []error{alone, among} {
				switch {
				case !errors.Is(err, c.want):
					t.Errorf("%s: got %v, want %v", c.about, err, c.want)
				case !strings.Contains(err.Error(), c.text):
					t.Errorf("%s: got %q, want it to say %q", c.about, err, c.text)
				case strings.Contains(err.Error(), "secret"):
					t.Errorf("%s: the error shows a value: %q", c.about, err)
				}
			}
			if among != nil && !strings.Contains(among.Error(), "task 1 of 3") {
				t.Errorf("%s: got %q, want it to say task 1 of 3", c.about, among)
			}
		}
		if _, err := outbox.EnqueueMany(t.Context(), tx, []outbox.NewTask{good, {Type: name, Options: []outbox.Option{outbox.Schema("other")}}}); !errors.Is(err, outbox.ErrInvalidOption) {
			t.Errorf("two schemas in one call: got %v, want ErrInvalidOption", err)
		}
		if tx.statements != 0 {
			t.Errorf("got %d statements, want 0", tx.statements)
		}
		put(t, tx, name, 2)
		end(t, tx.commit)
		if got := one(t, e.db, name).Payload; got != "2" {
			t.Errorf("got the task %s, want 2", got)
		}
	}}})
}

func TestWhatIsNoTransactionIsRefused(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	dbx := sqlx.NewDb(d.db, "postgres")
	for about, q := range map[string]outbox.Querier{
		"nil":                          nil,
		"a nil *sql.Tx":                (*sql.Tx)(nil),
		"a nil *sqlx.Tx":               (*sqlx.Tx)(nil),
		"a nil *sql.Conn":              (*sql.Conn)(nil),
		"a nil *sql.DB":                (*sql.DB)(nil),
		"a *sql.DB":                    d.db,
		"a *sqlx.DB":                   dbx,
		"a *sql.DB in another type":    struct{ *sql.DB }{d.db},
		"a *sqlx.DB without its names": dbx.Unsafe(),
	} {
		_, one := outbox.Enqueue(t.Context(), q, "T", 1)
		_, many := outbox.EnqueueMany(t.Context(), q, []outbox.NewTask{{Type: "T"}, {Type: "T"}})
		_, none := outbox.EnqueueMany(t.Context(), q, nil)
		_, typed := outbox.NewTaskType[int]("T").Enqueue(t.Context(), q, 1)
		for _, err := range []error{one, many, none, typed} {
			if !errors.Is(err, outbox.ErrNoTransaction) {
				t.Errorf("%s: got %v, want ErrNoTransaction", about, err)
			}
		}
	}
	if n := len(rows(t, d.db, "T")); n != 0 {
		t.Errorf("got %d tasks, want 0", n)
	}
}

func TestNewTaskTypePanicsAtWhatEnqueueWouldRefuse(t *testing.T) {
	t.Parallel()
	for want, f := range map[error]func(){
		outbox.ErrInvalidType:   func() { outbox.NewTaskType[int]("") },
		outbox.ErrInvalidOption: func() { outbox.NewTaskType[int]("T", outbox.MaxAttempts(-1)) },
	} {
		func() {
			defer func() {
				if err, _ := recover().(error); !errors.Is(err, want) {
					t.Errorf("got a panic with %v, want %v", err, want)
				}
			}()
			f()
		}()
	}
}

func TestTheDefaultsOfATaskTypeAreNotMixedUpByItsCallers(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	// Five, since a copy of them has room for a sixth.
	defaults := append(make([]outbox.Option, 0, 8), outbox.Priority(1), outbox.MaxAttempts(5), outbox.MaxPayload(1), outbox.After(1), outbox.After(0))
	typed := outbox.NewTaskType[int]("T", defaults...)
	tasks := []outbox.NewTask{typed.New(0), typed.New(1, outbox.Priority(2)), typed.New(2, outbox.Priority(3)), typed.New(3, outbox.MaxAttempts(6))}
	defaults[0] = outbox.Priority(99) // the caller's slice, not the type's
	tx := begin(t, d.db)
	putMany(t, tx, tasks...)
	if _, err := typed.Enqueue(context.Background(), tx, 4); err != nil {
		t.Fatal(err)
	}
	all := rows(t, tx, "T")
	for i, want := range []struct{ priority, attempts int }{{1, 5}, {2, 5}, {3, 5}, {1, 6}, {1, 5}} {
		if all[i].Priority != want.priority || all[i].MaxAttempts.Int64 != int64(want.attempts) {
			t.Errorf("task %d: got priority %d and %d attempts, want %+v", i, all[i].Priority, all[i].MaxAttempts.Int64, want)
		}
	}
}
