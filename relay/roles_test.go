package relay_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// A relay whose role is a member of the workers' and has no other right does all that relays do: it wakes up, runs each kind, cancels, fires
// schedules, takes over, promotes heads, and does each job of maintenance.
func TestARelayNeedsNoMoreThanTheRoleOfWorkers(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	owner := adopt(t, pgtest.Local(t, nil).URL()) // whose roles meet no others
	if err := schema.GrantRoles(t.Context(), owner.DB); err != nil {
		t.Fatal(err)
	}
	owner.Do(t, `CREATE ROLE relay_app LOGIN PASSWORD 'of the test' IN ROLE outbox_worker`)
	owner.Do(t, `CREATE ROLE web_app LOGIN PASSWORD 'of the test' IN ROLE outbox_enqueuer`)
	pool := func(role string) *database { return open(t, as(t, owner.URL, role, "of the test")) }
	worker, web := pool("relay_app"), pool("web_app")

	// What a relay that died left behind: a lease, a run, requests to cancel, old rows, keys without tasks.
	owner.Do(t, `
		INSERT INTO outbox.task (task_id, task_type, state, attempt, relay_id, lease_token) OVERRIDING SYSTEM VALUE
		VALUES (1000001, 'LEASED', 'leased', 1, gen_random_uuid(), gen_random_uuid());
		INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES ('00000000-0000-0000-0000-000000000001', 'gone', 1, now() - interval '1 day', '{}');
		INSERT INTO outbox.running (task_id, token, relay_id) VALUES (1000002, gen_random_uuid(), '00000000-0000-0000-0000-000000000001');
		INSERT INTO outbox.cancel (task_id) VALUES (1000003);
		INSERT INTO outbox.unique_key SELECT 'TX', n::text, 2000000 + n FROM generate_series(1, 50) n;
		INSERT INTO outbox.dead_task (task_id, run_at, created_at, died_at, priority, attempt, max_attempts, reason, task_type, payload)
		VALUES (1000004, now(), now(), now() - interval '1 day', 0, 1, 1, 'handler', 'TX', '{}');
		INSERT INTO outbox.done_task (task_id, run_at, created_at, finished_at, keep_until, priority, attempt, task_type, payload)
		VALUES (1000005, now(), now(), now(), now() - interval '1 hour', 0, 1, 'TX', '{}')`)

	reg := handlers.New()
	keep, one := handlers.Keep(time.Hour), handlers.MaxAttempts(1)
	handlers.Tx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		_, err := outbox.Enqueue(ctx, tx, "LATER", task.Payload, outbox.UniquePayload(), outbox.After(time.Hour))
		return err
	}, keep)
	handlers.Batch(reg, typeBatch, 5, func(context.Context, outbox.Tx, []*outbox.Task[payload]) error { return nil }, keep)
	handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
		if err := task.Extend(ctx, time.Minute); err != nil {
			return err
		}
		return task.Complete(ctx, func(*sql.Tx) error { return nil })
	}, keep, handlers.MaxRunningTotal(2), handlers.Rate(1000, time.Second))
	handlers.Tx(reg, outbox.NewTaskType[payload]("DIES"), func(context.Context, *sql.Tx, *outbox.Task[payload]) error { return errAlways }, one)
	handlers.Leased(reg, outbox.NewTaskType[payload]("DIES_LEASED"), func(context.Context, *outbox.Task[payload]) error { return errAlways }, one)
	handlers.Batch(reg, outbox.NewTaskType[payload]("DIES_BATCH"), 5, func(context.Context, outbox.Tx, []*outbox.Task[payload]) error { return errAlways }, one)
	handlers.Leased(reg, outbox.NewTaskType[payload]("CANCELED"), func(ctx context.Context, _ *outbox.Task[payload]) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	died := make(chan struct{}, 100)
	config := relay.Config{ListenDSN: worker.URL, DeadRetention: time.Hour, OnDead: func(context.Context, relay.DeadLetter) { died <- struct{}{} },
		Schedules: relay.Schedules{{Name: "often", Timing: relay.Every(time.Second), Task: outbox.NewTask{Type: "TX", Payload: payload{}}}}}
	relays := []*running{run(t, worker, reg, config), run(t, pool("relay_app"), reg, config)}

	for _, taskType := range []string{"TX", "BATCH", "LEASED", "DIES", "DIES_LEASED", "DIES_BATCH", "CANCELED"} {
		for _, opts := range [][]outbox.Option{nil, {outbox.OrderedBy("o")}, {outbox.OrderedBy("o")}, {outbox.Unique("u")}, {outbox.After(100 * time.Millisecond)}} {
			err := outbox.InTx(t.Context(), web.DB, func(tx *sql.Tx) error {
				_, err := outbox.Enqueue(t.Context(), tx, taskType, payload{N: 1}, opts...)
				return err
			})
			if err != nil {
				t.Fatalf("enqueue %s: %v", taskType, err)
			}
		}
	}
	if err := schema.GrantRoles(t.Context(), owner.DB); err != nil { // beside relays at work
		t.Fatal(err)
	}
	eventually(t, 60*time.Second, "all but the canceled are done", func() bool {
		owner.Do(t, `DO $$ DECLARE id bigint; BEGIN
			FOR id IN SELECT task_id FROM outbox.task WHERE task_type = 'CANCELED' AND state = 'leased' LOOP PERFORM outbox.cancel_task(id); END LOOP; END $$`)
		return owner.Int(t, `SELECT count(*) FROM outbox.task WHERE task_type <> 'LATER'`) == 0
	})
	<-died
	for what, query := range map[string]string{
		"history is purged":                     `SELECT count(*) FROM outbox.done_task WHERE keep_until < now()`,
		"old dead letters are purged":           `SELECT count(*) FROM outbox.dead_task WHERE task_id = 1000004`,
		"dead relays and their runs are reaped": `SELECT (SELECT count(*) FROM outbox.relay WHERE host = 'gone') + (SELECT count(*) FROM outbox.running WHERE task_id = 1000002)`,
		"requests to cancel are cleared":        `SELECT count(*) FROM outbox.cancel`,
		"keys are swept":                        `SELECT count(*) FROM outbox.unique_key WHERE task_id > 2000000`,
		"the bloat check was made":              `SELECT count(*) FROM outbox.maintenance WHERE job = 'bloat' AND due_at < now()`,
		"the schedule fired":                    `SELECT count(*) FROM outbox.schedule WHERE last_at IS NULL`,
	} {
		eventually(t, 60*time.Second, what, func() bool { return owner.Int(t, query) == 0 })
	}
	eventually(t, 60*time.Second, "counts are noted", func() bool { return owner.Int(t, `SELECT count(*) FROM outbox.sample`) > 0 })
	eventually(t, 60*time.Second, "counts are folded", func() bool { return owner.Int(t, `SELECT count(*) FROM outbox.counter`) > 0 })
	for _, r := range relays {
		r.Stop()
		for line := range strings.Lines(r.Log.String()) {
			if strings.Contains(line, "permission denied") || strings.Contains(line, "42501") || strings.Contains(line, "no wake-ups") {
				t.Errorf("a worker lacks a right: %s", line)
			}
		}
	}
	owner.Do(t, `DELETE FROM outbox.unique_key WHERE task_id > 2000000`)
}
