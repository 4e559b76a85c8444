package outbox_test

import (
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

func TestEnqueue(t *testing.T) {
	t.Parallel()
	onEveryClient(t, []contract{
		{"a_task_exists_once_its_transaction_commits", func(t *testing.T, e *env) {
			name, tx := newType(), e.tx(t)
			got := put(t, tx.Querier, name, welcome{UserID: 7})
			if n := len(rows(t, e.db, name)); n != 0 {
				t.Errorf("others see %d tasks before the commit, want 0", n)
			}
			end(t, tx.commit)
			if s := one(t, e.db, name); s.ID != got.TaskID || s.Payload != `{"user_id": 7}` {
				t.Errorf("got task %d with %s, want %d with user 7", s.ID, s.Payload, got.TaskID)
			}
		}},
		{"no_task_exists_after_a_rollback", func(t *testing.T, e *env) {
			name, tx := newType(), e.tx(t)
			put(t, tx.Querier, name, nil)
			putMany(t, tx, outbox.NewTask{Type: name}, outbox.NewTask{Type: name})
			if n := len(rows(t, tx, name)); n != 3 {
				t.Errorf("the transaction sees %d tasks, want 3", n)
			}
			end(t, tx.rollback)
			if n := len(rows(t, e.db, name)); n != 0 {
				t.Errorf("got %d tasks, want 0", n)
			}
		}},
		{"the_four_ways_to_enqueue_in_Go_store_equal_rows_with_one_statement_each", func(t *testing.T, e *env) {
			name, tx := newType(), e.tx(t)
			typed, payload := outbox.NewTaskType[welcome](name), welcome{UserID: 1, Name: "Ünal <&>"}
			if typed.Name() != name {
				t.Errorf("Name() = %q, want %q", typed.Name(), name)
			}
			opts := []outbox.Option{outbox.Priority(-3), outbox.MaxAttempts(4), outbox.Headers(map[string]string{"trace": "a\"b"})}
			if _, err := typed.Enqueue(t.Context(), tx, payload, opts...); err != nil {
				t.Fatal(err)
			}
			put(t, tx, name, payload, opts...)
			putMany(t, tx, typed.New(payload, opts...))
			putMany(t, tx, typed.New(payload, opts...), outbox.NewTask{Type: name, Payload: payload, Options: opts})
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
		{"EnqueueMany_inserts_thousands_with_one_statement_and_ids_in_their_order", func(t *testing.T, e *env) {
			name, tx := newType(), e.tx(t)
			const n = 5000
			tasks := make([]outbox.NewTask, n)
			for i := range tasks {
				opts := []outbox.Option{outbox.Priority(i % 7)}
				switch i % 4 { // so that NULL stands beside values in every array
				case 1:
					opts = append(opts, outbox.MaxAttempts(i+1), outbox.RunAt(time.Now().Add(time.Hour)))
				case 2:
					opts = append(opts, outbox.Headers(map[string]string{"i": fmt.Sprint(i)}), outbox.After(time.Hour))
				}
				tasks[i] = outbox.NewTask{Type: name, Payload: i, Options: opts}
			}
			got := putMany(t, tx, tasks...)
			if len(got) != n || tx.statements != 1 {
				t.Fatalf("got %d results of %d statements, want %d of 1", len(got), tx.statements, n)
			}
			for i, s := range rows(t, tx, name) {
				if s.ID != got[i].TaskID || s.Payload != fmt.Sprint(i) || s.Priority != i%7 {
					t.Fatalf("task %d: got id %d with payload %s and priority %d, want id %d", i, s.ID, s.Payload, s.Priority, got[i].TaskID)
				}
				if s.MaxAttempts.Valid != (i%4 == 1) || s.Headers.Valid != (i%4 == 2) || (s.State == "scheduled") != (i%4 == 1 || i%4 == 2) {
					t.Fatalf("task %d has another's options: %+v", i, s)
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
			if n := len(rows(t, e.db, name)); n != len(txs) {
				t.Errorf("got %d tasks, want %d", n, len(txs))
			}
		}},
		{"an_error_of_the_database_is_wrapped_and_shows_no_payload", func(t *testing.T, e *env) {
			missing := outbox.NewTask{Type: "T", Payload: "secret-4711", Options: []outbox.Option{outbox.Schema("missing")}}
			for want, tasks := range map[string][]outbox.NewTask{"3F000": {missing}, "42P01": {missing, missing}} { // no such schema, no such table
				_, err := outbox.EnqueueMany(t.Context(), e.tx(t), tasks)
				if sqlState(err) != want || !strings.HasPrefix(err.Error(), "outbox: enqueue ") || strings.Contains(err.Error(), "4711") {
					t.Errorf("%d tasks: got %v, want SQLSTATE %s, wrapped", len(tasks), err, want)
				}
			}
		}},
	})
}
