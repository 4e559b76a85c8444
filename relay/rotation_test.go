package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/relay"
)

// While the pool has no valid password, or cannot ask for it, that is an outage: no task is to
// blame, and it ends by itself.
func TestAPoolWithoutAValidPasswordIsAnOutage(t *testing.T) {
	t.Parallel()
	db := adopt(t, pgtest.Local(t, nil).URL()) // it asks for passwords
	type ask func() (password string, err error)
	tests := map[string]func(*testing.T){}
	for name, c := range map[string]struct {
		wrong  error // of the function; nil: the server refuses the password
		is     error // of Health
		errors int   // in the log
		open   func(ask) *sql.DB
	}{
		"pq_sealed": {errors.New("the vault is sealed"), relay.ErrOutage, 0, func(ask ask) *sql.DB {
			pool, err := pgdb.OpenFunc(func(context.Context) (string, error) {
				known, err := ask()
				return as(t, db.URL, "pq_sealed", known), err
			})
			must(err)
			return pool
		}},
		"pgx_rotated": {nil, relay.ErrRefused, 1, func(ask ask) *sql.DB {
			config, err := pgx.ParseConfig(as(t, db.URL, "pgx_rotated", ""))
			must(err)
			return stdlib.OpenDB(*config, stdlib.OptionBeforeConnect(func(_ context.Context, c *pgx.ConnConfig) (err error) {
				c.Password, err = ask()
				return err
			}))
		}},
	} {
		tests[name] = func(t *testing.T) {
			db.Do(t, `CREATE ROLE `+name+` SUPERUSER LOGIN PASSWORD 'C4n4ry-1'`)
			var sealed atomic.Bool
			var password atomic.Value
			password.Store("C4n4ry-1")
			pool := c.open(func() (string, error) {
				if sealed.Load() {
					return "", c.wrong
				}
				return password.Load().(string), nil
			})
			defer pool.Close()
			pool.SetMaxOpenConns(12)
			called, release := make(chan struct{}, 9), make(chan struct{})
			reg := handlers.New()
			handlers.Leased(reg, outbox.NewTaskType[payload](name), func(ctx context.Context, task *outbox.Task[payload]) error {
				called <- struct{}{}
				<-release
				err := task.Extend(ctx, time.Minute)
				called <- struct{}{}
				return err
			}, handlers.MaxAttempts(1), retrySoon())
			db.Enqueue(t, name, 1)
			r := relaytest.Run(t, pool, reg, relay.Config{PollInterval: 50 * time.Millisecond})
			defer r.Stop()
			<-called
			sealed.Store(c.wrong != nil)
			db.Do(t, `ALTER ROLE `+name+` PASSWORD 'C4n4ry-2'`)
			db.Do(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1`, name)
			eventually(t, 20*time.Second, "the relay says why it cannot connect", func() bool {
				return r.Log.Count(outageBegins)+r.Log.Count("refuses what the relay needs") == 1
			})
			close(release)
			<-called
			eventually(t, 20*time.Second, "Health says so", func() bool { return errors.Is(r.Health(), c.is) })
			password.Store("C4n4ry-2")
			sealed.Store(false)
			db.doneOf(t, name)
			db.want(t, 0, "dead letters", `SELECT count(*) FROM outbox.dead_task`)
			r.Log.Want(t, c.errors, "level=ERROR")
			r.Log.Want(t, 0, "C4n4ry")
		}
	}
	relaytest.Together(t, tests)
}
