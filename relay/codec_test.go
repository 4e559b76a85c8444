package relay_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// reversed is a codec for tests.
type reversed string

func (c reversed) Name() string { return string(c) }

func (c reversed) Encode(plain []byte) ([]byte, error) {
	out := bytes.Clone(plain)
	for i, b := range plain {
		out[len(out)-1-i] = b
	}
	return out, nil
}

func (c reversed) Decode(stored []byte) ([]byte, error) {
	if bytes.Contains(stored, []byte("damaged")) {
		return nil, errors.New("it is damaged")
	}
	if bytes.Contains(stored, []byte("mine")) {
		panic("a mine")
	}
	return c.Encode(stored)
}

// onKind registers a handler of any kind. For a Leased one again ends in Complete.
func onKind(reg *handlers.Registry, kind outbox.Kind, of outbox.TaskType[payload],
	h func(task *outbox.Task[payload]) error, opts ...handlers.Option) {
	switch kind {
	case outbox.KindTx:
		handlers.Tx(reg, of, func(_ context.Context, _ *sql.Tx, task *outbox.Task[payload]) error {
			return h(task)
		}, opts...)
	case outbox.KindLeased:
		handlers.Leased(reg, of, func(ctx context.Context, task *outbox.Task[payload]) error {
			result := h(task)
			if handlers.ActionOf(result) == handlers.ActionRunAgain {
				return task.Complete(ctx, func(*sql.Tx) error { return result })
			}
			return result
		}, opts...)
	case outbox.KindBatch:
		handlers.Batch(reg, of, 10, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
			some := handlers.BatchResult{}
			for _, task := range tasks {
				some[task.ID] = h(task)
			}
			return some
		}, opts...)
	}
}

var codecKinds = []outbox.Kind{outbox.KindTx, outbox.KindBatch, outbox.KindLeased}

// A task goes all ways. Its payload is never stored in plain text, and its handler never sees another.
func TestAnEncodedTaskStaysEncodedOnAllItsWays(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE TABLE in_clear (task text);
		CREATE FUNCTION in_clear() RETURNS trigger LANGUAGE plpgsql AS
		$$BEGIN INSERT INTO in_clear VALUES (to_jsonb(NEW)::text); RETURN NULL; END$$`)
	for _, table := range []string{"task", "dead_task", "done_task"} {
		db.Do(t, `CREATE TRIGGER in_clear AFTER INSERT OR UPDATE ON outbox.`+table+` FOR EACH ROW
			WHEN (jsonb_typeof(NEW.payload) <> 'string' OR NEW.headers ->> 'outbox-codec' IS DISTINCT FROM 'old'
			OR NEW.headers ->> 'h' IS DISTINCT FROM '1') EXECUTE FUNCTION in_clear()`)
	}
	reg, saw, mu := handlers.New(), map[string][]string{}, sync.Mutex{}
	reg.Use(func(next handlers.Func) handlers.Func {
		return func(ctx context.Context, c *handlers.Call) error {
			mu.Lock()
			saw[c.Type] = append(saw[c.Type], fmt.Sprint(string(c.Tasks[0].Payload), c.Tasks[0].Headers))
			mu.Unlock()
			return next(ctx, c)
		}
	})
	for _, kind := range codecKinds {
		of := outbox.NewTaskType[payload](string(kind), outbox.Codec(reversed("new"), reversed("old")))
		calls := 0
		onKind(reg, kind, of, func(task *outbox.Task[payload]) error {
			calls++
			switch calls {
			case 1:
				return errors.New("refused")
			case 2:
				return handlers.Snooze(0)
			case 3:
				return handlers.RunAgainWith(task, 0, payload{N: task.Payload.N + 1})
			case 4:
				return handlers.Dead(errors.New("given up"))
			}
			return nil
		}, handlers.Retention(time.Hour), relaytest.RetrySoon())
		relaytest.EnqueueAll(db.DB, of.New(payload{N: 1}, outbox.Codec(reversed("old")),
			outbox.Headers(map[string]string{"h": "1"})))
	}
	run(t, db, reg, relay.Config{})
	three := func(table string) {
		t.Helper()
		eventually(t, time.Minute, table, func() bool { return db.Int(t, `SELECT count(*) FROM outbox.`+table) == 3 })
	}
	three("dead_task")
	if _, err := relaytest.Admin(t, db.DB).Redrive(t.Context(), admin.Filter{All: true}, admin.Bulk{}); err != nil {
		t.Fatal(err)
	}
	three("done_task")
	db.want(t, 0, "rows in plain text", `SELECT count(*) FROM in_clear`)
	mu.Lock()
	defer mu.Unlock()
	for _, kind := range codecKinds {
		const first, second = `{"N":1}map[h:1]`, `{"N":2}map[h:1]`
		if got := fmt.Sprint(saw[string(kind)]); got != fmt.Sprint([]string{first, first, first, second, second}) {
			t.Errorf("%s: middleware saw %s", kind, got)
		}
	}
}

// What no codec decodes fails an attempt, of its own task alone, and says why; a task that was enqueued
// without a codec is read as it is, and goes on without.
func TestAPayloadThatNoCodecDecodesFailsItsTaskAlone(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	for _, kind := range codecKinds {
		of := outbox.NewTaskType[payload](string(kind), outbox.Codec(reversed("c")))
		onKind(reg, kind, of, func(task *outbox.Task[payload]) error {
			if task.Headers != nil {
				return fmt.Errorf("headers %v", task.Headers)
			}
			if task.Payload.N == 7 {
				return handlers.RunAgainWith(task, 0, payload{N: 8})
			}
			return nil
		}, handlers.MaxAttempts(1), handlers.Retention(time.Hour))
		relaytest.EnqueueAll(db.DB, of.New(payload{N: 1}), outbox.TaskSpec{Type: string(kind), Payload: payload{N: 7}},
			of.New(payload{N: 2}, outbox.Codec(reversed("another"))))
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, headers)
			SELECT $1, p, '{"outbox-codec": "c"}' FROM unnest(ARRAY[
			'{"secret": 1}', '"secret!"', 'null', to_jsonb(encode('secret damaged', 'base64')),
			to_jsonb(encode('secret mine', 'base64')), to_jsonb(encode('terces', 'base64'))]::jsonb[]) p`, string(kind))
	}
	log := once(t, db, reg, relay.Config{})
	for _, kind := range codecKinds {
		of := string(kind)
		db.Want(t, `{"N": 8} "fTE6Ik4iew=="`, `SELECT string_agg(payload::text, ' ' ORDER BY payload::text DESC)
			FROM outbox.done_task WHERE task_type = $1`, of)
		for text, n := range map[string]int{
			`the payload is encoded by the codec "another", which is not given here: name it`: 1,
			`the codec "c" does not decode the payload: it is no JSON string of base64`:       3,
			`the codec "c" does not decode the payload: it is damaged`:                        1,
			`the codec "c" does not decode the payload: panic: a mine (in `:                   1,
			`the codec "c" does not decode the payload: Decode returned no JSON`:              1,
		} {
			db.want(t, n, of+" with "+text, `SELECT count(*) FROM outbox.dead_task WHERE task_type = $1 AND attempt = 1
				AND starts_with(last_error, 'handlers: task type ' || $1 || ': ' || $2)`, of, text)
		}
	}
	db.want(t, 0, "errors with data", `SELECT count(*) FROM outbox.dead_task WHERE last_error ~ 'secret|terces'`)
	if strings.Contains(log, "secret") || strings.Contains(log, "terces") {
		t.Errorf("the log has data:\n%s", log)
	}
}

// A schedule of the code runs its hooks and codec for each firing. Its definition does not depend on them.
func TestAScheduleRunsTheHooksAndTheCodecOfItsTask(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	n := 0
	of := outbox.NewTaskType[payload]("T", outbox.Codec(reversed("c")),
		outbox.BeforeEnqueue(func(_ context.Context, task *outbox.TaskSpec) error {
			switch n++; n {
			case 1:
				return errors.New("not now")
			case 2:
				panic("nor now")
			}
			task.Options = append(task.Options, outbox.AddHeaders(map[string]string{"n": fmt.Sprint(n)}))
			return nil
		}))
	config := relay.Config{Schedules: []relay.Schedule{
		{Name: "s", Timing: relay.Every(time.Hour), Task: of.New(payload{N: 1})},
		{Name: "z", Timing: relay.Every(time.Hour), Task: outbox.TaskSpec{Type: "OTHER"}}}}
	once(t, db, idle(), config)
	const definitionSQL = `SELECT definition FROM outbox.schedule WHERE name = 's'`
	definition := db.Text(t, definitionSQL)
	var log string
	for range 3 {
		db.Do(t, `UPDATE outbox.schedule SET next_at = now()`)
		log += once(t, db, idle(), config)
	}
	db.want(t, 3, "firings of the other schedule", `SELECT count(*) FROM outbox.task WHERE task_type = 'OTHER'`)
	db.Want(t, `"fTE6Ik4iew==" {"n": "3", "outbox-codec": "c"}`,
		`SELECT payload::text || ' ' || headers FROM outbox.task WHERE task_type = 'T'`)
	db.Want(t, definition, definitionSQL)
	for _, text := range []string{"BeforeEnqueue of T: not now", "BeforeEnqueue of T: panic: nor now"} {
		if !strings.Contains(log, `task of a schedule cannot be enqueued" schedule=s error="outbox: `+text) {
			t.Errorf("the log lacks %q:\n%s", text, log)
		}
	}
}
