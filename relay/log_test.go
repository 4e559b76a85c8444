package relay_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/relay"
)

// canary is in all that may not be seen.
const canary = "C4n4ry"

// I12: with secrets in payloads, headers, connection strings and rows, and everything going wrong that logs, they are in
// no record, at Debug level either.
func TestNoSecretReachesALog(t *testing.T) {
	t.Parallel()
	server := pgtest.Local(t, nil)
	owner := adopt(t, server.URL())
	owner.Do(t, `CREATE ROLE app SUPERUSER LOGIN PASSWORD '`+canary+`'`)
	owner.Do(t, `CREATE TABLE account (email text PRIMARY KEY)`)
	owner.Do(t, `INSERT INTO account VALUES ('`+canary+`')`)
	u, err := url.Parse(owner.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("app", canary)

	log := &records{}
	reg := handlers.New()
	reg.Use(handlers.Log(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))), handlers.Recover())
	type number struct{ N int }
	type nested struct{ M map[string]struct{ N []int } }
	retry := handlers.Backoff(constant(50 * time.Millisecond))
	handlers.Tx(reg, outbox.NewTaskType[number]("UNDECODABLE"), func(context.Context, *sql.Tx, *outbox.Task[number]) error { return nil }, retry, handlers.MaxAttempts(2))
	handlers.Batch(reg, outbox.NewTaskType[nested]("UNDECODABLE_BATCH"), 10, func(context.Context, outbox.Tx, []*outbox.Task[nested]) error { return nil }, retry, handlers.MaxAttempts(2))
	handlers.Leased(reg, outbox.NewTaskType[number]("UNDECODABLE_LEASED"), func(context.Context, *outbox.Task[number]) error { return nil }, retry, handlers.MaxAttempts(2))
	handlers.Tx(reg, outbox.NewTaskType[json.RawMessage]("CONFLICT"), func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[json.RawMessage]) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO account VALUES ('`+canary+`')`)
		return err
	}, retry, handlers.MaxAttempts(2))
	handlers.Leased(reg, outbox.NewTaskType[json.RawMessage]("DISCARDED"), func(context.Context, *outbox.Task[json.RawMessage]) error {
		return handlers.Discard(errors.New("no use"))
	})
	handlers.Tx(reg, outbox.NewTaskType[json.RawMessage]("PANIC"), func(context.Context, *sql.Tx, *outbox.Task[json.RawMessage]) error { panic("at the sight of it") }, retry, handlers.MaxAttempts(1))
	handlers.Tx(reg, outbox.NewTaskType[json.RawMessage]("DONE"), func(context.Context, *sql.Tx, *outbox.Task[json.RawMessage]) error { return nil })

	enqueue := func() {
		for _, taskType := range []string{"UNDECODABLE", "UNDECODABLE_BATCH", "UNDECODABLE_LEASED", "CONFLICT", "DISCARDED", "PANIC", "DONE", "UNKNOWN"} {
			owner.Do(t, `INSERT INTO outbox.task (task_type, payload, headers)
				SELECT $1, jsonb_build_object('N', $2::text, 'M', jsonb_build_object($2::text, jsonb_build_object('N', jsonb_build_array(1, $2::text)))), jsonb_build_object($2::text, $2::text)`, taskType, canary)
		}
	}
	// LISTEN works, and it fails at a wrong port and with a wrong password.
	for _, dsn := range []string{u.String(), withPort(t, u.String(), "1"), strings.Replace(u.String(), canary, "wrong"+canary, 1)} {
		r := run(t, open(t, u.String()), reg, relay.Config{ListenDSN: dsn, PollInterval: 20 * time.Millisecond})
		enqueue()
		owner.doneBut(t, "UNKNOWN")
		if dsn == u.String() {
			if err := errors.Join(server.Stop("immediate"), server.Start(context.Background())); err != nil {
				t.Fatal(err)
			}
			owner.reachable(t)
			enqueue()
			owner.doneBut(t, "UNKNOWN")
		} else {
			eventually(t, 20*time.Second, "LISTEN fails", func() bool { return r.Log.Count("no wake-ups by LISTEN") > 0 })
		}
		r.Stop()
		log.Write([]byte(r.Log.String()))
	}
	// The driver cannot parse what the pool was opened with, and repeats it in its error.
	broken := strings.Replace(u.String(), "127.0.0.1", "%zz", 1)
	r := run(t, open(t, broken), reg, relay.Config{})
	eventually(t, 20*time.Second, "the pool fails", func() bool { return r.Log.Count(outageBegins) > 0 })
	r.Stop()
	log.Write([]byte(r.Log.String()))

	for _, want := range []string{"does not decode", "discarded", "became a dead letter", "at the sight of it", unhandled, outageBegins, "duplicate key", "level=DEBUG"} {
		if log.Count(want) == 0 {
			t.Errorf("nothing was logged of %q: the test shows nothing", want)
		}
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, canary) || strings.Contains(line, "://") {
			t.Errorf("a record has a secret: %s", line)
		}
	}
	if n := owner.Int(t, `SELECT count(*) FROM outbox.dead_task WHERE last_error LIKE '%'||$1||'%'`, canary); n > 0 {
		t.Errorf("%d dead letters have it in their error", n)
	}
}

// doneBut waits until only tasks of the type are left.
func (db *database) doneBut(t testing.TB, taskType string) {
	t.Helper()
	eventually(t, 30*time.Second, "all others are done", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_type <> $1`, taskType) == 0
	})
}
