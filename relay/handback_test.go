package relay_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// staleEnds are how the handler of a lost lease may end.
var staleEnds = []func(ctx context.Context, task *outbox.Task[payload]) error{
	leasedEffect,
	func(context.Context, *outbox.Task[payload]) error { return nil },
	func(context.Context, *outbox.Task[payload]) error { return errors.New("stale") },
	func(context.Context, *outbox.Task[payload]) error { return handlers.Dead(errors.New("stale")) },
	func(context.Context, *outbox.Task[payload]) error { return handlers.Snooze(time.Hour) },
}

// F6, F7, I4: a relay that lives after all loses the leases that an operator handed back. Whatever its
// handlers then do changes nothing, while another relay has run half of the tasks and runs the others.
func TestHandBackTakesTheLeasesOfARelayAtOnce(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	tasks := 2 * len(staleEnds)
	causes, begun := make(chan error, tasks), make(chan struct{}, tasks)
	var lost atomic.Int32
	end, release := make(chan struct{}), make(chan struct{})
	stale := run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		begun <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		<-end
		err := staleEnds[task.Payload.N%len(staleEnds)](context.WithoutCancel(ctx), task)
		if errors.Is(err, outbox.ErrLeaseLost) {
			lost.Add(1)
		}
		return err
	}), relay.Config{Workers: tasks, PollInterval: 100 * time.Millisecond})
	db.Enqueue(t, "LEASED", tasks)
	for range tasks {
		<-begun
	}
	id := db.Text(t, `SELECT relay_id FROM outbox.relay`)
	db.Do(t, dead(someUUID, "4 minutes"))
	db.Do(t, `INSERT INTO outbox.task (task_type, state, attempt, relay_id, lease_token)
		VALUES ('OTHER', 'leased', 1, $1, $1)`, someUUID)
	at := time.Now()
	if n, err := relaytest.Admin(t, db.DB).HandBack(t.Context(), strings.ToUpper(id)); n != int64(tasks) || err != nil {
		t.Fatalf("HandBack: %d, %v; want %d", n, err, tasks)
	}
	for range tasks {
		if cause := <-causes; !errors.Is(cause, outbox.ErrLeaseLost) {
			t.Errorf("a handler's context ended by %v, want ErrLeaseLost", cause)
		}
	}
	if d := time.Since(at); relaytest.Timing && d > 6*time.Second {
		t.Errorf("they ended after %v, want a heartbeat", d)
	}
	run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		if task.Payload.N/len(staleEnds)%2 == 1 {
			<-release
		}
		return leasedEffect(ctx, task)
	}), relay.Config{Workers: tasks, PollInterval: 100 * time.Millisecond})
	db.becomes(t, 20*time.Second, tasks/2, "another relay has run half of them", `SELECT count(*) FROM effect`)
	db.becomes(t, 20*time.Second, tasks/2+1, "and runs the others", `SELECT count(*) FROM outbox.task
		WHERE state = 'leased'`)
	before := db.tasks(t)
	close(end)
	stale.Stop()
	if after := db.tasks(t); after != before || int(lost.Load()) != tasks/len(staleEnds) {
		t.Errorf("%d stale completions got ErrLeaseLost; the tasks were\n%s\nand are\n%s", lost.Load(), before, after)
	}
	stale.Log.Want(t, tasks, "level=WARN msg=\"outbox: a lease was ")
	close(release)
	db.becomes(t, 20*time.Second, tasks, "they are done", `SELECT count(*) FROM effect`)
	db.OnceEach(t, tasks)
	db.want(t, 0, "effects are not of the second attempt", `SELECT count(*) FROM effect WHERE attempt <> 2`)
	db.becomes(t, 20*time.Second, "leased 1", "the other relay's", `SELECT string_agg(state || ' ' || attempt, ', ')
		FROM outbox.task`)
}

// tasks is all there is in the table of tasks.
func (db *database) tasks(t testing.TB) string {
	t.Helper()
	return db.Text(t, `SELECT json_agg(t ORDER BY task_id) FROM outbox.task t`)
}

// "Work that survives a database restart": the lease and the result do, and the run is the only
// one.
func TestALeasedRunSurvivesARestartOfTheServer(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	server := pgtest.Local(t, nil)
	db := adopt(t, server.URL())
	begun, restarted := make(chan struct{}, 10), make(chan struct{})
	run(t, open(t, db.URL), leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		begun <- struct{}{}
		<-restarted
		if err := task.Extend(ctx, time.Minute); err != nil {
			return err
		}
		if task.Payload.N%2 == 0 {
			return leasedEffect(ctx, task)
		}
		return nil
	}, handlers.Timeout(time.Minute)), relay.Config{Workers: 4, PollInterval: fastPoll.PollInterval})
	db.Enqueue(t, "LEASED", 4)
	for range 4 {
		<-begun
	}
	before := db.tasks(t)
	for _, mode := range []string{"fast", "immediate"} {
		if err := errors.Join(server.Stop(mode), server.Start(context.Background())); err != nil {
			t.Fatal(err)
		}
		db.reachable(t)
	}
	if after := db.tasks(t); after != before {
		t.Errorf("the leases changed: %s, before %s", after, before)
	}
	close(restarted)
	db.Emptied(t, 20*time.Second)
	if got := db.Text(t, `SELECT string_agg(attempt::text, ' ') FROM effect`); got != "1 1" || len(begun) != 0 {
		t.Errorf("done in attempts %s, and %d further runs; want 1 1 and none", got, len(begun))
	}
}
