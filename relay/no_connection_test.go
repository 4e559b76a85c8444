package relay_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// closing makes connections that have a name, or while it is closed none: with a SQLSTATE.
type closing struct {
	driver.Connector
	code atomic.Pointer[string]
}

func (c *closing) Connect(ctx context.Context) (driver.Conn, error) {
	if code := c.code.Load(); code != nil {
		return nil, &pq.Error{Severity: "FATAL", Code: pqerror.Code(*code), Message: "no connections now"}
	}
	return c.Connector.Connect(ctx)
}

// close ends the connections, and makes none any more.
func (c *closing) close(t *testing.T, db *database, code string) {
	c.code.Store(&code)
	db.Do(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'closing'
		AND datname = current_database()`)
}

// Whatever prevents a new connection is the server's fault, also a revoked right to connect (42501), a
// database that takes no connections (55000), or one that was renamed (3D000).
func TestWhateverPreventsAConnectionIsAnOutage(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for _, code := range []string{"42501", "55000", "3D000", "28P01"} {
		tests[code] = func(t *testing.T) {
			db := newDatabase(t)
			to := &closing{Connector: connector(t, "postgres", db.URL+"&application_name=closing")}
			pool := sql.OpenDB(to)
			t.Cleanup(func() { pool.Close() })
			began, extend, runs := make(chan bool), make(chan bool), atomic.Int64{}
			r := relaytest.Run(t, pool, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
				if runs.Add(1) > 1 {
					return nil
				}
				close(began)
				<-extend
				err := task.Extend(ctx, time.Minute)
				to.code.Store(nil)
				return err
			}, handlers.MaxAttempts(1), retrySoon()), relay.Config{Workers: 2, PollInterval: 50 * time.Millisecond})
			db.Enqueue(t, "LEASED", 1)
			<-began
			to.close(t, db, code)
			eventually(t, 20*time.Second, "an outage", func() bool { return errors.Is(r.Health(), relay.ErrOutage) })
			close(extend)
			db.Emptied(t, 30*time.Second)
			db.want(t, 0, "dead letters", `SELECT count(*) FROM outbox.dead_task`)
			r.Log.Want(t, 0, "cannot be claimed or recorded")
			r.Log.Want(t, 1, outageBegins)
		}
	}
	relaytest.Together(t, tests)
}
