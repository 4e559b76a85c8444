package outbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/needs"
)

// The payloads of one call travel in one text, so each must come back as it was, in the place that it had.
func TestManyTasksKeepTheirPayloadsAndTheirOrder(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	payloads := []any{
		json.RawMessage("\n{\n  \"a\":\n1,\r\n\t\"b\": [\n]}\n"), json.RawMessage("1\n"), "line\nfeed", "\\n", `"`, `'it''s'`, "{,}", "NULL", nil, "",
		literal("[1,\n2]"), map[string]string{"a\nb": "\r\n\t\\"}, strings.Repeat("x\n", 50_000), "\u2028\u0085\x7f", json.RawMessage(`"\u000a"`),
	}
	onEveryClient(t, []contract{{"with_one_type_and_with_several", func(t *testing.T, e *env) {
		for _, types := range [][]string{{newType()}, {newType(), "a b,c{}\"'\\", newType()}} {
			var tasks []outbox.NewTask
			for i := range 3200 {
				tasks = append(tasks, outbox.NewTask{Type: types[i%len(types)], Payload: i})
				if i < len(payloads) {
					tasks = append(tasks, outbox.NewTask{Type: types[0], Payload: payloads[i]})
				}
				if i == 3000 {
					tasks = append(tasks, outbox.NewTask{Type: types[0], Payload: i, Options: []outbox.Option{outbox.Priority(1)}})
				}
			}
			tx := e.tx(t)
			exec(t, tx, "SET LOCAL work_mem = '64kB'")
			got := putMany(t, tx, tasks...)
			for i := range tasks {
				if i > 60 && i%97 > 0 && (i < 3010 || i > 3020) {
					continue
				}
				want, err := tasks[i].Encode()
				if err != nil {
					t.Fatal(err)
				}
				var same bool
				var taskType string
				err = tx.QueryRowContext(t.Context(), `SELECT payload = $2::text::jsonb, task_type FROM outbox.task WHERE task_id = $1`, got[i].TaskID, string(want)).Scan(&same, &taskType)
				if err != nil || !same || taskType != tasks[i].Type || i > 0 && got[i].TaskID <= got[i-1].TaskID {
					t.Fatalf("task %d: its id is %d, its type is %s, its payload is the same: %v; %v", i, got[i].TaskID, taskType, same, err)
				}
			}
		}
	}}})
}

// A line feed is white space between tokens, and nothing else.
func TestALineFeedInAStringOfRawJSONIsRefusedAsEver(t *testing.T) {
	t.Parallel()
	tx := begin(t, newDatabase(t).db)
	for _, n := range []int{1, 2} {
		tasks := make([]outbox.NewTask, n)
		for i := range tasks {
			tasks[i] = outbox.NewTask{Type: "T", Payload: json.RawMessage("\"a\nb\"")}
		}
		if _, err := outbox.EnqueueMany(t.Context(), tx, tasks); err == nil || !strings.Contains(err.Error(), "not JSON near byte 3") {
			t.Errorf("%d tasks: got %v, want a refusal of the line feed", n, err)
		}
	}
}

// arguments counts those of the latest statement.
type arguments struct {
	outbox.Querier
	n int
}

func (a *arguments) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	a.n = len(args)
	return a.Querier.QueryContext(ctx, query, args...)
}

func (a *arguments) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	a.n = len(args)
	return a.Querier.QueryRowContext(ctx, query, args...)
}

func TestAStatementBindsWhatItsTasksUseAndNoMore(t *testing.T) {
	t.Parallel()
	tx := &arguments{Querier: begin(t, newDatabase(t).db)}
	for _, c := range []struct {
		one, many int
		opts      []outbox.Option
	}{
		{2, 2, []outbox.Option{outbox.Priority(0), outbox.MaxAttempts(0), outbox.After(-1), outbox.Headers(map[string]string{})}},
		{3, 3, []outbox.Option{outbox.Priority(1)}},
		{4, 5, []outbox.Option{outbox.MaxAttempts(3), outbox.After(time.Hour)}}, // a time has two arrays
		{8, 9, []outbox.Option{outbox.Priority(1), outbox.MaxAttempts(3), outbox.RunAt(time.Now()), outbox.Headers(map[string]string{"a": "b"}), outbox.Timeout(time.Hour), outbox.OrderedBy("k")}},
	} {
		for tasks, want := range map[int]int{1: c.one, 100: c.many} {
			if _, err := outbox.EnqueueMany(t.Context(), tx, repeated(tasks, c.opts)); err != nil {
				t.Fatal(err)
			}
			if tx.n != want {
				t.Errorf("%d tasks bind %d arguments, want %d", tasks, tx.n, want)
			}
		}
	}
}

func repeated(n int, opts []outbox.Option) (tasks []outbox.NewTask) {
	for i := range n {
		task := outbox.NewTask{Type: "T", Payload: fmt.Sprint(i)}
		if i == 0 {
			task.Options = opts
		}
		tasks = append(tasks, task)
	}
	return tasks
}
