package rights_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/schema"
)

// The owner of all tables changes while transactions enqueue: none of these fails.
func TestGrantRolesEndsNoTransactionOfTheApp(t *testing.T) {
	needs.CI(t)
	admin := openURL(t, pgtest.Database(t))
	name := newName()
	if err := schema.Migrate(t.Context(), admin, schema.Schema(name)); err != nil {
		t.Fatal(err)
	}
	dropGroups(t, admin, name)
	in := outbox.Schema(name)
	enqueue := func(opts ...outbox.Option) error {
		return outbox.InTx(t.Context(), admin, func(tx *sql.Tx) error {
			for range 3 {
				if _, err := outbox.Enqueue(t.Context(), tx, "T", 1, append(opts, in)...); err != nil {
					return err
				}
			}
			_, err := outbox.Stats(t.Context(), tx, in)
			return err
		})
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			opts := [][]outbox.Option{nil, {outbox.OrderedBy("o")}, {outbox.Unique(fmt.Sprint(i))},
				{outbox.After(time.Hour)}}[i%4]
			for ctx.Err() == nil {
				if err := enqueue(opts...); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	err := schema.GrantRoles(t.Context(), admin, schema.Schema(name))
	stop()
	all.Wait()
	if err != nil {
		t.Error(err)
	}
}

// ALTER TABLE locks a table, then its sequence. An enqueue that held the sequence while it waits for the
// table would be a deadlock with each change of the schema.
func TestAnEnqueueThatWaitsForTheTableHoldsNothing(t *testing.T) {
	db := openURL(t, pgtest.Database(t))
	if err := schema.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	for about, opts := range map[string][]outbox.Option{"no option": nil, "an ordering key": {outbox.OrderedBy("o")},
		"a unique key": {outbox.Unique("u")}, "a delay": {outbox.After(time.Hour)}} {
		locker, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := locker.ExecContext(t.Context(), "LOCK TABLE outbox.task IN ACCESS EXCLUSIVE MODE"); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			ended <- outbox.InTx(t.Context(), db, func(tx *sql.Tx) error {
				_, err := outbox.Enqueue(t.Context(), tx, "T", 1, opts...)
				return err
			})
		}()
		var waiter int
		relaytest.Eventually(t, time.Minute, "the enqueue waits", func() bool {
			err := db.QueryRowContext(t.Context(), `SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid)
				WHERE datname = current_database() AND relation = 'outbox.task'::regclass AND NOT granted`).Scan(&waiter)
			return err == nil
		})
		var held sql.NullString
		if err := db.QueryRowContext(t.Context(), `SELECT string_agg(c.relname || ' ' || l.mode, ', ')
			  FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
			 WHERE l.pid = $1 AND l.granted AND c.relnamespace = 'outbox'::regnamespace`, waiter).Scan(&held); err != nil {
			t.Fatal(err)
		}
		if held.Valid {
			t.Errorf("an enqueue with %s holds %s", about, held.String)
		}
		if err := locker.Rollback(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
