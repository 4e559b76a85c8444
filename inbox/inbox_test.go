package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/inbox"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { relaytest.Main(m) }

// once notes an event in a transaction of its own.
func once(t *testing.T, db *sql.DB, source, id string, opts ...inbox.Option) (first bool) {
	t.Helper()
	relaytest.Must(outbox.InTx(t.Context(), db, func(tx *sql.Tx) (err error) {
		first, err = inbox.Once(t.Context(), tx, source, id, opts...)
		return err
	}))
	return first
}

func TestAnEventIsNewOnce(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	for i, c := range []struct {
		source, id string
		want       bool
	}{
		{"/orders", "1", true}, {"/orders", "1", false}, {"/orders", "2", true}, {"/mail", "1", true},
		{"/orders", "1", false},
		{"/orders", "ü' \\", true}, {"/orders", "ü' \\", false},
	} {
		if got := once(t, db.DB, c.source, c.id); got != c.want {
			t.Errorf("%d: %s %s: %v, want %v", i, c.source, c.id, got, c.want)
		}
	}
}

// Ten consumers get each of 50 events, all at the same time.
func TestConcurrentConsumersHaveEachEffectOnce(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Do(t, `CREATE TABLE invoice (event_id text)`)
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			for id := range 50 {
				err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
					first, err := inbox.Once(t.Context(), tx, "/orders", fmt.Sprint(id))
					if err != nil || !first {
						return err
					}
					_, err = tx.ExecContext(t.Context(), `INSERT INTO invoice VALUES ($1)`, fmt.Sprint(id))
					return err
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	db.Want(t, "50 50", `SELECT concat(count(*), ' ', count(DISTINCT event_id)) FROM invoice`)
}

// While one transaction has noted an event, another one waits for how it ends.
func TestASecondConsumerWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	for end, want := range map[string]bool{"commit": false, "rollback": true} {
		db := relaytest.NewDatabase(t)
		holder, err := db.BeginTx(t.Context(), nil)
		relaytest.Must(err)
		if first, err := inbox.Once(t.Context(), holder, "/orders", "1"); err != nil || !first {
			t.Fatal(first, err)
		}
		answer := make(chan bool, 1)
		go func() { answer <- once(t, db.DB, "/orders", "1") }()
		relaytest.Eventually(t, 20*time.Second, "the second one to wait", func() bool {
			return db.Int(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
				AND wait_event_type = 'Lock'`) == 1
		})
		how := map[string]func() error{"commit": holder.Commit, "rollback": holder.Rollback}[end]
		relaytest.Must(how())
		if got := <-answer; got != want {
			t.Errorf("after a %s: %v, want %v", end, got, want)
		}
	}
}

func TestRefusedCalls(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	conn, err := db.Conn(t.Context())
	relaytest.Must(err)
	defer conn.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	relaytest.Must(err)
	defer tx.Rollback()
	for name, c := range map[string]struct {
		tx         outbox.Querier
		source, id string
		opts       []inbox.Option
		want       error
		says       string
	}{
		"no transaction":      {nil, "/s", "1", nil, outbox.ErrNoTransaction, "nil"},
		"a pool":              {db.DB, "/s", "1", nil, outbox.ErrNoTransaction, "*sql.DB"},
		"no BEGIN":            {conn, "/s", "1", nil, outbox.ErrNoTransaction, "BEGIN"},
		"an empty source":     {tx, "", "1", nil, outbox.ErrInvalidOption, "source"},
		"an empty id":         {tx, "/s", "", nil, outbox.ErrInvalidOption, "id"},
		"a long id":           {tx, "/s", strings.Repeat("x", 1025), nil, outbox.ErrInvalidOption, "1025 bytes"},
		"not UTF-8":           {tx, "/s", "\xff", nil, outbox.ErrInvalidOption, "UTF-8"},
		"a NUL":               {tx, "/s\x00", "1", nil, outbox.ErrInvalidOption, "NUL"},
		"a schema's bad name": {tx, "/s", "1", []inbox.Option{inbox.Schema(`a"b`)}, outbox.ErrInvalidOption, "Schema"},
		"to keep for no time": {tx, "/s", "1", []inbox.Option{inbox.Retention(0)}, outbox.ErrInvalidOption, "Retention"},
		"to keep for too long": {tx, "/s", "1", []inbox.Option{inbox.Retention(101 * 365 * 24 * time.Hour)},
			outbox.ErrInvalidOption, "Retention"},
		"a nil option": {tx, "/s", "1", []inbox.Option{nil}, outbox.ErrInvalidOption, "an Option is nil"},
	} {
		if _, err := inbox.Once(t.Context(), c.tx, c.source, c.id, c.opts...); !errors.Is(err, c.want) ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v that says %q", name, err, c.want, c.says)
		}
	}
	if first, err := inbox.Once(t.Context(), tx, "/s", "1"); err != nil || !first {
		t.Errorf("the transaction after refused calls: %v, %v", first, err)
	}
}

func TestPurgeForgetsWhatItsTimeIsOver(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	once(t, db.DB, "/orders", "kept")
	once(t, db.DB, "/orders", "short", inbox.Retention(time.Microsecond))
	db.Do(t, `INSERT INTO outbox.inbox (source, event_id, keep_until) SELECT '/old', n::text, now() - interval '1 hour'
		FROM generate_series(1, 2500) n`)
	n, err := inbox.Purge(t.Context(), db.DB)
	if left := db.Text(t, `SELECT string_agg(event_id, ' ') FROM outbox.inbox`); err != nil || n != 2501 ||
		left != "kept" {
		t.Errorf("%d were forgotten, %q is left, %v; want 2501 and kept", n, left, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := inbox.Purge(ended, db.DB); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

func TestAnotherSchema(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	relaytest.Must(schema.Migrate(t.Context(), db.DB, schema.Schema("second")))
	if !once(t, db.DB, "/orders", "1", inbox.Schema("second")) || !once(t, db.DB, "/orders", "1") {
		t.Error("an event of one schema is known in the other")
	}
	db.Want(t, "1", `SELECT count(*) FROM second.inbox`)
	db.Do(t, `DROP SCHEMA second CASCADE`)
}
