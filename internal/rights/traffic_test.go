package rights_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
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
