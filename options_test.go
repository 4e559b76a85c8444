package outbox_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/txoutbox/outbox"
)

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
				{"a time to come", with(outbox.RunAt(hour)), "scheduled", hour},
				{"the same elsewhere", with(outbox.RunAt(hour.In(time.FixedZone("", -7*3600)))), "scheduled", hour},
				{"a time past", with(outbox.RunAt(hour.Add(-2 * time.Hour))), "ready", hour.Add(-2 * time.Hour)},
				{"the last second", with(outbox.RunAt(last)), "scheduled", last},
				{"before the first year", with(outbox.RunAt(time.Date(-50, 1, 1, 0, 0, 0, 0, time.UTC))), "ready",
					time.Time{}.Add(1)},
				{"the zero time", with(outbox.RunAt(hour), outbox.RunAt(time.Time{})), "ready", time.Time{}},
				{"a delay, then a time", with(outbox.After(time.Minute), outbox.RunAt(hour)), "scheduled", hour},
				{"a delay, then no time", with(outbox.After(time.Hour), outbox.RunAt(time.Time{})), "ready",
					time.Time{}},
				{"a time, then no delay", with(outbox.RunAt(hour), outbox.After(0)), "ready", time.Time{}},
				{"a negative delay", with(outbox.After(math.MinInt64)), "ready", time.Time{}},
			} {
				name, tx := newType(), e.tx(t)
				put(t, tx.Querier, name, nil, c.opts...)
				putMany(t, tx, outbox.TaskSpec{Type: name, Options: c.opts}, outbox.TaskSpec{Type: "other"})
				for _, got := range rows(t, tx, name) {
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
				task := outbox.TaskSpec{Type: name, Options: []outbox.Option{outbox.After(d)}}
				putMany(t, tx, task, task)
				until := clock()
				// PostgreSQL multiplies intervals as floating point: in 292 years it is off by a
				// millisecond.
				off := time.Duration(float64(d)/1e15) + time.Microsecond
				for _, got := range rows(t, tx, name) {
					if got.RunAt.Before(from.Add(d-off)) || got.RunAt.After(until.Add(d).Add(off)) ||
						got.State != "scheduled" {
						t.Errorf("After(%v): got %s at %v, want scheduled between %v and %v", d, got.State, got.RunAt,
							from.Add(d), until.Add(d))
					}
				}
			}
		}},
		{"are_stored_with_a_task_alone_and_with_one_among_others", func(t *testing.T, e *env) {
			tx := e.tx(t)
			check := func(got outbox.Enqueued, want string) {
				t.Helper()
				const columns = `SELECT jsonb_strip_nulls(to_jsonb(t) - '{task_id,task_type,payload,run_at,created_at,attempt,iterations}'::text[]) FROM outbox.task t WHERE task_id = $1`
				found := scan[string](t, tx, columns, got.ID)
				if !scan[bool](t, tx, `SELECT $1::text::jsonb = '{"state": "ready", "priority": 0, "skip_failed": false, "unique_until_done": false}' || $2::text::jsonb`, found, want) {
					t.Errorf("task %d is %.200s, want %.200s", got.ID, found, want)
				}
			}
			single, many := newType(), newType()
			var tasks []outbox.TaskSpec
			for _, c := range optionsStored {
				check(put(t, tx.Querier, single, 1, c.opts...), c.want)
				tasks = append(tasks, outbox.TaskSpec{Type: many, Payload: 1, Options: c.opts})
			}
			for range 2 { // the second time those with unique keys are there
				for i, got := range putMany(t, tx, tasks...) {
					check(got, optionsStored[i].want)
				}
			}
			wantTasks(t, tx, many, 2*len(tasks)-4)
		}},
	})
	if len(sharedHeaders) != 2 || sharedHeaders["b"] != "1" {
		t.Errorf("the caller's map became %v", sharedHeaders)
	}
}

var sharedHeaders = map[string]string{"a": "1", "b": "1"}

// optionsStored are options, and the columns that are not at their defaults.
var optionsStored = []struct {
	opts []outbox.Option
	want string
}{
	{nil, `{}`},
	{with(outbox.Priority(math.MinInt16), outbox.MaxAttempts(1)), `{"priority": -32768, "max_attempts": 1}`},
	{with(outbox.Priority(math.MaxInt16), outbox.MaxAttempts(math.MaxInt16)),
		`{"priority": 32767, "max_attempts": 32767}`},
	{with(outbox.Priority(1), outbox.MaxAttempts(2), outbox.Priority(3), outbox.MaxAttempts(0)), `{"priority": 3}`},
	{with(outbox.Headers(sharedHeaders), outbox.AddHeaders(map[string]string{"b": "2", "c": "2"}),
		outbox.AddHeaders(nil)), `{"headers": {"a": "1", "b": "2", "c": "2"}}`},
	{with(outbox.Headers(sharedHeaders), outbox.Headers(nil)), `{}`},
	{with(outbox.Headers(sharedHeaders), outbox.Headers(map[string]string{})), `{}`},
	{with(outbox.Headers(sharedHeaders), outbox.Headers(map[string]string{"Ünï \"'\\{}": "<&>\u2028😀\n\x01",
		"": "empty", "empty": ""})),
		`{"headers": {"Ünï \"'\\{}": "<&>\u2028😀\n\u0001", "": "empty", "empty": ""}}`},
	{with(outbox.Headers(map[string]string{"k": strings.Repeat("\x01", 4<<10-1)})),
		`{"headers": {"k": "` + strings.Repeat(`\u0001`, 4<<10-1) + `"}}`},
	{with(outbox.Timeout(1500 * time.Millisecond)), `{"timeout_ms": 1500}`},
	{with(outbox.OrderedBy("k")), `{"state": "waiting", "ordering_key": "k"}`},
	{with(outbox.OrderedBy("it's"), outbox.SkipFailed()),
		`{"state": "waiting", "ordering_key": "it's", "skip_failed": true}`},
	{with(outbox.Unique("a")), `{"unique_key": "a"}`},
	{with(outbox.Timeout(1500*time.Millisecond), outbox.OrderedBy("k"), outbox.Unique("b", outbox.UntilDone())),
		`{"state": "waiting", "timeout_ms": 1500, "ordering_key": "k", "unique_key": "b", "unique_until_done": true}`},
	{with(outbox.Timeout(2*time.Second), outbox.OrderedBy("k"), outbox.SkipFailed(), outbox.Unique("c"),
		outbox.OnConflict(outbox.ConflictReplace)),
		`{"state": "waiting", "timeout_ms": 2000, "ordering_key": "k", "skip_failed": true, "unique_key": "c"}`},
	{with(outbox.Timeout(2500*time.Millisecond), outbox.Priority(2), outbox.Unique("d"),
		outbox.OnConflict(outbox.ConflictReschedule)),
		`{"timeout_ms": 2500, "priority": 2, "unique_key": "d"}`},
	{with(outbox.Timeout(3*time.Second), outbox.OrderedBy("k"), outbox.Headers(sharedHeaders), outbox.Priority(7),
		outbox.MaxAttempts(3)),
		`{"state": "waiting", "timeout_ms": 3000, "ordering_key": "k", "headers": {"a": "1", "b": "1"}, "priority": 7, "max_attempts": 3}`},
}

func with(opts ...outbox.Option) []outbox.Option { return opts }

func TestEveryTypeThatEnqueueTakesIsStored(t *testing.T) {
	t.Parallel()
	tasks := []outbox.TaskSpec{{Type: strings.Repeat("x", 128)}, {Type: strings.Repeat("😀", 32)}}
	name := ""
	for r := range unicode.MaxRune + 1 {
		if unicode.IsPrint(r) {
			name += string(r)
		}
		if len(name) > 124 || r == unicode.MaxRune {
			tasks = append(tasks, outbox.TaskSpec{Type: name})
			name = ""
		}
	}
	tx := begin(t, newDatabase(t).db)
	for i, got := range putMany(t, tx, tasks...) {
		if i%100 < 2 && one(t, tx, tasks[i].Type).ID != got.ID {
			t.Errorf("type %q is not task %d", tasks[i].Type, got.ID)
		}
	}
}

func TestNewTaskTypePanicsAtWhatEnqueueWouldRefuse(t *testing.T) {
	t.Parallel()
	for want, f := range map[error]func(){
		outbox.ErrInvalidType:   func() { outbox.NewTaskType[int]("") },
		outbox.ErrInvalidOption: func() { outbox.NewTaskType[int]("T", outbox.MaxAttempts(-1)) },
	} {
		if err := panicOf(f); !errors.Is(err, want) {
			t.Errorf("got a panic with %v, want %v", err, want)
		}
	}
}

func panicOf(f func()) (err error) {
	defer func() { err, _ = recover().(error) }()
	f()
	return nil
}

type (
	hidden    struct{ _ string }
	shown     struct{ Email string }
	itself    struct{ *itself }
	byPointer struct{ _ string }
	byText    struct{ _ string }
)

func (*byPointer) MarshalJSON() ([]byte, error) { return []byte("1"), nil }
func (byText) MarshalText() ([]byte, error)     { return nil, nil }

func TestNewTaskTypeRefusesAPayloadWhoseFieldsAreAllHidden(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(){
		"outbox_test.hidden":     func() { outbox.NewTaskType[hidden]("T") },
		"**outbox_test.hidden":   func() { outbox.NewTaskType[**hidden]("T") },
		"{ outbox_test.hidden }": func() { outbox.NewTaskType[struct{ hidden }]("T") },
		"{ error }":              func() { outbox.NewTaskType[struct{ error }]("T") },
		"outbox_test.byPointer":  func() { outbox.NewTaskType[byPointer]("T") }, // not called for a value
		"{ n int; _ [0]func() }": func() {
			outbox.NewTaskType[struct {
				n int
				_ [0]func()
			}]("T")
		},
	} {
		if err := panicOf(f); !errors.Is(err, outbox.ErrInvalidPayload) ||
			!strings.Contains(err.Error(), name+" has no exported field") {
			t.Errorf("%s: got %v, want ErrInvalidPayload", name, err)
		}
	}
	for name, f := range map[string]func(){
		"no field":                 func() { outbox.NewTaskType[struct{}]("T") },
		"an embedded empty struct": func() { outbox.NewTaskType[struct{ *itself }]("T") },
		"one exported of two": func() {
			outbox.NewTaskType[struct {
				hidden
				ID int
			}]("T")
		},
		"a promoted field":           func() { outbox.NewTaskType[struct{ *shown }]("T") },
		"MarshalJSON of the pointer": func() { outbox.NewTaskType[*byPointer]("T") },
		"MarshalText":                func() { outbox.NewTaskType[byText]("T") },
		"MarshalJSON of a field":     func() { outbox.NewTaskType[struct{ time.Time }]("T") },
		"an interface":               func() { outbox.NewTaskType[any]("T") },
		"a slice":                    func() { outbox.NewTaskType[[]shown]("T") },
	} {
		if err := panicOf(f); err != nil {
			t.Errorf("%s: got a panic with %v", name, err)
		}
	}
}

func TestTheDefaultsOfATaskTypeAreNotMixedUpByItsCallers(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	// Five, since a copy of them has room for a sixth.
	defaults := append(make([]outbox.Option, 0, 8), outbox.Priority(1), outbox.MaxAttempts(5), outbox.MaxPayload(1),
		outbox.After(1), outbox.After(0))
	typed := outbox.NewTaskType[int]("T", defaults...)
	tasks := []outbox.TaskSpec{typed.New(0), typed.New(1, outbox.Priority(2)), typed.New(2, outbox.Priority(3)),
		typed.New(3, outbox.MaxAttempts(6))}
	defaults[0] = outbox.Priority(99) // the caller's slice, not the type's
	tx := begin(t, d.db)
	putMany(t, tx, tasks...)
	if _, err := typed.Enqueue(context.Background(), tx, 4); err != nil {
		t.Fatal(err)
	}
	all := rows(t, tx, "T")
	for i, want := range []struct{ priority, attempts int }{{1, 5}, {2, 5}, {3, 5}, {1, 6}, {1, 5}} {
		if all[i].Priority != want.priority || all[i].MaxAttempts.Int64 != int64(want.attempts) {
			t.Errorf("task %d: got priority %d and %d attempts, want %+v", i, all[i].Priority, all[i].MaxAttempts.Int64,
				want)
		}
	}
	keyed := outbox.NewTaskType[int]("U", outbox.UniquePayload())
	if _, err := keyed.Enqueue(t.Context(), tx, 1, outbox.Unique("mine")); err != nil {
		t.Fatal(err)
	}
	want(t, tx, "mine", `SELECT unique_key FROM outbox.task WHERE task_type = 'U'`)
}
