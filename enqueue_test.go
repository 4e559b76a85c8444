package outbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/schema"
)

type welcome struct {
	UserID int    `json:"user_id"`
	Name   string `json:"name,omitempty"`
}

// manyPayloads travel in one text with those of the other tasks of a call.
var manyPayloads = []any{
	json.RawMessage("\n{\n  \"a\":\n1,\r\n\t\"b\": [\n]}\n"), json.RawMessage("1\n"), "line\nfeed", "\\n", `"`,
	`'it''s'`, "{,}", "NULL", nil, "",
	literal("[1,\n2]"), map[string]string{"a\nb": "\r\n\t\\"}, strings.Repeat("x\n", 50_000), "\u2028\u0085\x7f",
	json.RawMessage(`"\u000a"`),
}

func TestEnqueue(t *testing.T) {
	t.Parallel()
	onEveryClient(t, []contract{
		{"tasks_exist_once_their_transaction_commits_and_not_if_it_does_not", func(t *testing.T, e *env) {
			for _, commit := range []bool{false, true} {
				name, tx := newType(), e.tx(t)
				got := put(t, tx.Querier, name, welcome{UserID: 7})
				putMany(t, tx, outbox.TaskSpec{Type: name}, outbox.TaskSpec{Type: name})
				if within, outside := len(rows(t, tx, name)), len(rows(t, e.db, name)); within != 3 || outside != 0 {
					t.Errorf("the transaction sees %d tasks and others %d, want 3 and 0", within, outside)
				}
				tx.end(t, commit)
				all := rows(t, e.db, name)
				if commit && (len(all) != 3 || all[0].ID != got.ID || all[0].Payload != `{"user_id": 7}`) ||
					!commit && len(all) != 0 {
					t.Errorf("committed %v: got %v", commit, all)
				}
			}
		}},
		{"the_four_ways_to_enqueue_in_Go_store_equal_rows_with_one_statement_each", func(t *testing.T, e *env) {
			name, tx := newType(), e.tx(t)
			typed, payload := outbox.NewTaskType[welcome](name), welcome{UserID: 1, Name: "Ünal <&>"}
			if typed.Name() != name {
				t.Errorf("Name() = %q, want %q", typed.Name(), name)
			}
			opts := []outbox.Option{outbox.Priority(-3), outbox.MaxAttempts(4),
				outbox.Headers(map[string]string{"trace": "a\"b"})}
			if _, err := typed.Enqueue(t.Context(), tx, payload, opts...); err != nil {
				t.Fatal(err)
			}
			put(t, tx, name, payload, opts...)
			putMany(t, tx, typed.New(payload, opts...))
			putMany(t, tx, typed.New(payload, opts...), outbox.TaskSpec{Type: name, Payload: payload, Options: opts})
			if tx.statements != 4 {
				t.Errorf("they took %d statements, want 4", tx.statements)
			}
			all := rows(t, tx, name)
			if len(all) != 5 {
				t.Fatalf("got %d tasks, want 5", len(all))
			}
			for _, s := range all[1:] {
				if s.ID = all[0].ID; !reflect.DeepEqual(s, all[0]) {
					t.Errorf("got %+v, want %+v", s, all[0])
				}
			}
		}},
		{"EnqueueMany_inserts_thousands_with_one_statement_as_they_are_and_ids_in_their_order",
			func(t *testing.T, e *env) {
				tx := e.tx(t)
				exec(t, tx, "SET LOCAL work_mem = '64kB'")
				for _, types := range [][]string{{newType()}, {newType(), "a b,c{}\"'\\", newType()}} {
					tasks := make([]outbox.TaskSpec, 5000)
					for i := range tasks {
						opts := []outbox.Option{outbox.Priority(i % 7)}
						switch i % 4 { // so that NULL stands beside values in every array
						case 1:
							opts = append(opts, outbox.MaxAttempts(i+1), outbox.RunAt(time.Now().Add(time.Hour)))
						case 2:
							opts = append(opts, outbox.Headers(map[string]string{"i": fmt.Sprint(i)}),
								outbox.After(time.Hour))
						}
						tasks[i] = outbox.TaskSpec{Type: types[i%len(types)], Payload: i, Options: opts}
						if i < len(manyPayloads) {
							tasks[i].Payload = manyPayloads[i]
						}
					}
					tx.statements = 0
					got := putMany(t, tx, tasks...)
					if len(got) != len(tasks) || tx.statements != 1 {
						t.Fatalf("got %d results of %d statements, want %d of 1", len(got), tx.statements, len(tasks))
					}
					inserted := map[int64]stored{}
					for _, taskType := range types {
						for _, s := range rows(t, tx, taskType) {
							inserted[s.ID] = s
						}
					}
					for i, task := range tasks {
						s := inserted[got[i].ID]
						if s.Type != task.Type || s.Priority != i%7 || i > 0 && s.ID <= got[i-1].ID {
							t.Fatalf("task %d: got id %d, type %s and priority %d", i, s.ID, s.Type, s.Priority)
						}
						want, err := task.Encode()
						if err != nil || i >= len(manyPayloads) && s.Payload != string(want) {
							t.Fatalf("task %d: got payload %s, %v; want %s", i, s.Payload, err, want)
						}
						if i < len(manyPayloads) &&
							!scan[bool](t, tx, `SELECT $1::text::jsonb = $2::text::jsonb`, s.Payload, string(want)) {
							t.Fatalf("task %d: got payload %s, want %s", i, s.Payload, want)
						}
						if s.MaxAttempts.Valid != (i%4 == 1) || s.Headers.Valid != (i%4 == 2) ||
							(s.State == "scheduled") != (i%4 == 1 || i%4 == 2) {
							t.Fatalf("task %d has another's options: %+v", i, s)
						}
					}
				}
			}},
		{"EnqueueMany_of_nothing_sends_nothing", func(t *testing.T, e *env) {
			tx := e.tx(t)
			if got := putMany(t, tx); len(got) != 0 || tx.statements != 0 {
				t.Errorf("got %v and %d statements, want nothing", got, tx.statements)
			}
		}},
		{"SERIALIZABLE_transactions_enqueue_side_by_side", func(t *testing.T, e *env) {
			name := newType()
			var txs [3]*recorder
			for i := range txs {
				txs[i] = e.tx(t)
				exec(t, txs[i], "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
			}
			for _, tx := range txs {
				put(t, tx, name, 1)
			}
			for _, tx := range txs {
				end(t, tx.commit)
			}
			wantTasks(t, e.db, name, len(txs))
		}},
	})
}

func TestPlainSQLInsertsEqualEnqueue(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	tx := begin(t, d.db)
	exec(t, tx, `CREATE TABLE usr (usr_id bigint PRIMARY KEY, email text)`)
	put(t, tx, "T", map[string]int{"usr_id": 5})
	same := outbox.TaskSpec{Type: "T", Payload: map[string]int{"usr_id": 5}}
	putMany(t, tx, same, same)
	exec(t, tx, `INSERT INTO outbox.task (task_type, payload) VALUES ('T', '{"usr_id": 5}')`)
	exec(t, tx, `WITH u AS (INSERT INTO usr VALUES (5, 'a@example.com') RETURNING usr_id)
		INSERT INTO outbox.task (task_type, payload) SELECT 'T', jsonb_build_object('usr_id', usr_id) FROM u`)
	want(t, tx, "5 of 1", `SELECT count(*) || ' of ' || count(DISTINCT to_jsonb(t) - 'task_id')
		FROM outbox.task t`)
}

func TestEnqueueUsesTheNamedSchemaAndNoOther(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for _, name := range []string{"user", strings.Repeat("s", 63)} { // user is a reserved word
		must(schema.Migrate(t.Context(), d.db, schema.Schema(name)))
		tx := begin(t, d.db)
		exec(t, tx, "SET LOCAL search_path = pg_catalog")
		typed := outbox.NewTaskType[int]("T", outbox.Schema(name))
		putMany(t, tx, typed.New(1))
		putMany(t, tx, typed.New(2), typed.New(3))
		putMany(t, tx, typed.New(4, outbox.Unique("k")))
		want(t, tx, 4, `SELECT count(*) FROM "`+name+`".task`)
		want(t, tx, 0, `SELECT count(*) FROM outbox.task`)
		stats, err := outbox.Stats(t.Context(), tx, outbox.Schema(name))
		if err != nil || len(stats) != 1 || stats[0].Ready != 4 {
			t.Errorf("got the counts %+v, %v; want 4 ready ones", stats, err)
		}
	}
}

// All that is called on an outbox is in its schema, and nothing of another gets there.
func TestAnOutboxIsInItsSchemaAndNoOther(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	a, b := outbox.In("tenant_a"), outbox.In("tenant_b")
	for _, o := range []outbox.Outbox{a, b} {
		must(schema.Migrate(t.Context(), d.db, schema.Schema(o.Schema())))
	}
	typed, tx := outbox.NewTaskType[int]("T", outbox.Priority(7)), begin(t, d.db)
	first, err := a.Enqueue(t.Context(), tx, "T", 1, outbox.After(time.Hour))
	must(err)
	_, err = typed.In(a).Enqueue(t.Context(), tx, 2)
	must(err)
	_, err = a.EnqueueMany(t.Context(), tx, []outbox.TaskSpec{typed.New(3), typed.In(a).New(4,
		outbox.Unique("k")), {Type: "T"}})
	must(err)
	want(t, tx, "0 3", `SELECT count(*) FILTER (WHERE priority = 7) - 3 || ' ' || count(*) - 2 FROM tenant_a.task`)
	if r, err := b.RunNow(t.Context(), tx, first.ID); err != nil || r != outbox.RunNowNotScheduled {
		t.Errorf("RunNow in the other: %v, %v", r, err)
	}
	if r, err := a.RunNow(t.Context(), tx, first.ID); err != nil || r != outbox.RunNowDue {
		t.Errorf("RunNow: %v, %v", r, err)
	}
	if r, err := b.Cancel(t.Context(), tx, first.ID); err != nil || r != outbox.CancelNotFound {
		t.Errorf("Cancel in the other: %v, %v", r, err)
	}
	if r, err := a.Cancel(t.Context(), tx, first.ID); err != nil || r != outbox.CancelRemoved {
		t.Errorf("Cancel: %v, %v", r, err)
	}
	if stats, err := a.Stats(t.Context(), tx); err != nil || len(stats) != 1 || stats[0].Ready != 4 {
		t.Errorf("Stats: %+v, %v", stats, err)
	}
	ofB := outbox.NewTaskType[int]("T", outbox.Schema("tenant_b"))
	for text, f := range map[string]func() error{
		`Schema("tenant_b"): the task is enqueued in the outbox In("tenant_a")`: func() error {
			_, err := a.Enqueue(t.Context(), tx, "T", 1, outbox.Schema("tenant_b"))
			return err
		},
		`Schema("tenant_b"): the task`: func() error {
			_, err := typed.In(a).Enqueue(t.Context(), tx, 1, outbox.Schema("tenant_b"))
			return err
		},
		`task 1 of 2: outbox: invalid option: Schema("tenant_b")`: func() error {
			_, err := a.EnqueueMany(t.Context(), tx, []outbox.TaskSpec{typed.New(1), typed.In(b).New(1)})
			return err
		},
		`task 0 of 2: outbox: invalid option: Schema("tenant_b")`: func() error {
			_, err := a.EnqueueMany(t.Context(), tx, []outbox.TaskSpec{ofB.New(1), typed.New(1)})
			return err
		},
		`Schema("tenant_b"): the task is enqueued in`: func() error {
			_, err := ofB.In(a).Enqueue(t.Context(), tx, 1)
			return err
		},
		`Schema("Tenant A"): `: func() error {
			_, err := outbox.In("Tenant A").Enqueue(t.Context(), tx, "T", 1)
			return err
		},
		`Schema(""): `: func() error {
			_, err := outbox.Outbox{}.Stats(t.Context(), tx)
			return err
		},
	} {
		if err := f(); !errors.Is(err, outbox.ErrInvalidOption) || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want ErrInvalidOption with %s", err, text)
		}
	}
	want(t, tx, 0, `SELECT (SELECT count(*) FROM outbox.task) + (SELECT count(*) FROM tenant_b.task)`)
}

// PostgreSQL drops the connection, and with it the caller's transaction, at a message of 1 GiB.
func TestEnqueueManyRefusesMoreThanOneStatementCanCarry(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	d := newDatabase(t)
	tx := &recorder{transaction: transaction{Querier: begin(t, d.db)}}
	big := json.RawMessage(`"` + strings.Repeat("x", 16<<20-2) + `"`)
	tasks := make([]outbox.TaskSpec, 17)
	for i := range tasks {
		tasks[i] = outbox.TaskSpec{Type: "T", Payload: big, Options: []outbox.Option{outbox.MaxPayload(len(big))}}
	}
	_, err := outbox.EnqueueMany(t.Context(), tx, tasks)
	if !errors.Is(err, outbox.ErrPayloadTooLarge) || tx.statements != 0 ||
		!strings.Contains(err.Error(), "task 15 of 17") {
		t.Errorf("got %v after %d statements, want ErrPayloadTooLarge for task 15 before any", err, tx.statements)
	}
	exec(t, tx, "SELECT 1")
}

func TestADroppedRowIsAnErrorAndNotAMissingTask(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	exec(t, d.db, `CREATE FUNCTION drop_row() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	exec(t, d.db, `CREATE TRIGGER drop_row BEFORE INSERT ON outbox.task FOR EACH ROW WHEN (NEW.priority = 1)
		EXECUTE FUNCTION drop_row()`)
	tx := begin(t, d.db)
	dropped := outbox.TaskSpec{Type: "T", Options: []outbox.Option{outbox.Priority(1)}}
	if got, err := outbox.EnqueueMany(t.Context(), tx, []outbox.TaskSpec{dropped}); err == nil {
		t.Errorf("got %v, want an error for one task", got)
	}
	if got, err := outbox.EnqueueMany(t.Context(), tx, []outbox.TaskSpec{{Type: "T"}, dropped}); err == nil {
		t.Errorf("got %v, want an error for two tasks", got)
	}
	dropped.Options = append(dropped.Options, outbox.Unique("k"))
	if got, err := outbox.EnqueueMany(t.Context(), tx, []outbox.TaskSpec{dropped}); err == nil {
		t.Errorf("got %v, want an error for a task with a key", got)
	}
}

// notified returns the channels of the notifications since its last call, or since listen.
type notified func() (channels []string)

// listen listens on the channels, for what has been committed by the time of a call.
func (d database) listen(t *testing.T, channels ...string) notified {
	t.Helper()
	l := pq.NewListener(d.url, 10*time.Millisecond, time.Second, nil)
	t.Cleanup(func() { l.Close() })
	for _, channel := range append(channels, "marker") {
		must(l.Listen(channel))
	}
	return func() (got []string) {
		t.Helper()
		exec(t, d.db, `SELECT pg_notify('marker', '')`) // it arrives after those of earlier commits
		for {
			select {
			case n := <-l.Notify:
				switch {
				case n == nil:
					t.Fatal("the listener lost its connection")
				case n.Channel == "marker":
					return got
				}
				got = append(got, n.Channel+n.Extra)
			case <-time.After(time.Minute):
				t.Fatal("the marker did not arrive")
			}
		}
	}
}

func TestAnEnqueueNotifiesOnlyWhileARelayAsks(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	const other = "select" // a reserved word
	must(schema.Migrate(t.Context(), d.db, schema.Schema(other)))
	received := d.listen(t, "outbox", other)
	for _, c := range []struct {
		when, until string
		want        bool
	}{
		{"when no relay ever requested wake-ups", "", false},
		{"until the second of a request", "extract(epoch FROM clock_timestamp())::bigint + 3600", true},
		{"after that second", "extract(epoch FROM clock_timestamp())::bigint - 1", false},
		{"after the request was withdrawn", "0", false},
	} {
		for _, name := range []string{"outbox", other} {
			if c.until != "" {
				exec(t, d.db, `SELECT setval('"`+name+`".wake', `+c.until+`)`)
			}
			tx := begin(t, d.db)
			first := put(t, tx, "T", 1, outbox.Schema(name))
			put(t, tx, "T", 2, outbox.Schema(name))
			put(t, tx, "T", 1, outbox.Schema(name), outbox.After(time.Hour))
			if got := received(); len(got) != 0 {
				t.Errorf("%s: %s: got %v before the commit, want nothing", c.when, name, got)
			}
			end(t, tx.Commit)
			var want []string
			if c.want {
				want = []string{fmt.Sprintf("%s0 %d T", name, first.ID), name} // the first task, and all others
			}
			if got := received(); !slices.Equal(got, want) {
				t.Errorf("%s: %s: got notifications %q, want %v", c.when, name, got, c.want)
			}
			if c.want {
				exec(t, d.db, `SELECT setval('"`+name+`".wake', 0)`)
			}
		}
	}
}

// Relays of other processes are told by the commit, on the channel of the schema, and of nothing
// that did not happen.
func TestRunNowWakesRelaysWithItsCommit(t *testing.T) {
	t.Parallel()
	const name = "app_outbox"
	d := newDatabase(t, schema.Schema(name))
	exec(t, d.db, `INSERT INTO app_outbox.task (task_type, run_at) SELECT 'T', now() + interval '1 hour'
		FROM generate_series(1, 3)`)
	exec(t, d.db, `SELECT setval('app_outbox.wake', 4102444800)`) // as a relay asks that is idle
	received := d.listen(t, name, "outbox")
	for _, c := range []struct {
		what   string
		taskID int64
		commit bool
		want   []string
	}{{"rolled back", 1, false, nil}, {"committed", 1, true, []string{name}}, {"a task that is ready", 1, true, nil},
		{"an unknown task", 9, true, nil}, {"another one", 2, true, []string{name}}, {"nobody asks", 3, true, nil}} {
		if c.what == "nobody asks" {
			exec(t, d.db, `SELECT setval('app_outbox.wake', 0)`)
		}
		tx := begin(t, d.db)
		if _, err := outbox.RunNow(t.Context(), tx, c.taskID, outbox.Schema(name)); err != nil {
			t.Fatal(err)
		}
		how := tx.Rollback
		if c.commit {
			how = tx.Commit
		}
		end(t, how)
		if got := received(); !slices.Equal(got, c.want) {
			t.Errorf("%s: notified %q, want %q", c.what, got, c.want)
		}
	}
}
