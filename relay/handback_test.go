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
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// I4: a relay that lives after all loses the leases that an operator handed back.
func TestHandBackTakesTheLeasesOfARelayAtOnce(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		const tasks = 4
		causes, begun := make(chan error, tasks), make(chan struct{}, tasks)
		var ends atomic.Int32
		release := make(chan struct{})
		stale := run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
			begun <- struct{}{}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			<-release
			n := int(ends.Add(1)) - 1
			return relaytest.StaleEnds[n%len(relaytest.StaleEnds)](context.WithoutCancel(ctx), task)
		}), relay.Config{Workers: tasks, PollInterval: 100 * time.Millisecond})
		db.Enqueue(t, "LEASED", tasks)
		for range tasks {
			<-begun
		}
		id := db.Text(t, `SELECT relay_id FROM outbox.relay`)
		db.Do(t, `INSERT INTO outbox.task (task_type, state, attempt, relay_id, lease_token)
			VALUES ('OTHER', 'leased', 1, $1, $1)`, someUUID)
		at := time.Now()
		if n, err := relaytest.Admin(t, db.DB).HandBack(t.Context(), strings.ToUpper(id)); n != tasks || err != nil {
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
		other := run(t, db, leased(leasedEffect), fastPoll)
		db.becomes(t, 20*time.Second, tasks, "another relay has done them", `SELECT count(*) FROM effect`)
		close(release)
		stale.Stop()
		other.Stop()
		stale.Log.Want(t, tasks, "level=WARN msg=\"outbox: a lease was ")
		db.OnceEach(t, tasks)
		db.wantText(t, "leased 1", `SELECT string_agg(state || ' ' || attempt, ', ') FROM outbox.task`)
		db.want(t, tasks, "effects of second attempts", `SELECT count(*) FROM effect WHERE attempt = 2`)
	})
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
	before := db.Tasks(t)
	for _, mode := range []string{"fast", "immediate"} {
		if err := errors.Join(server.Stop(mode), server.Start(context.Background())); err != nil {
			t.Fatal(err)
		}
		db.reachable(t)
	}
	if after := db.Tasks(t); after != before {
		t.Errorf("the leases changed: %s, before %s", after, before)
	}
	close(restarted)
	db.Emptied(t, 20*time.Second)
	if got := db.Text(t, `SELECT string_agg(attempt::text, ' ') FROM effect`); got != "1 1" || len(begun) != 0 {
		t.Errorf("done in attempts %s, and %d further runs; want 1 1 and none", got, len(begun))
	}
}
