package outbox_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
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
