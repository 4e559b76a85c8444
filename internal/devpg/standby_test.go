//go:build unix

package devpg_test

import (
	"context"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
)

func TestASynchronousStandbyHasWhatWasCommittedWhenItsPrimaryIsKilled(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	primary := openLocal(t)
	standby := pgtest.Standby(t, primary)
	for _, statement := range []string{"ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"} {
		do(t, primary.URL(), statement)
	}
	within, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for query(t, primary.URL(), "SELECT count(*)::text FROM pg_stat_replication WHERE sync_state = 'sync'") != "1" {
		if within.Err() != nil {
			t.Fatal("the standby is not synchronous after 20 s")
		}
	}
	do(t, primary.URL(), "CREATE TABLE t AS SELECT 'kept' AS a")
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query(t, standby.URL(), "SELECT a FROM t"); got != "kept" {
		t.Errorf("got %q", got)
	}
	do(t, standby.URL(), "ALTER SYSTEM RESET synchronous_standby_names") // was copied, or not
	do(t, standby.URL(), "SELECT pg_reload_conf()")
	do(t, standby.URL(), "INSERT INTO t VALUES ('new')")
	if err := primary.Start(t.Context()); err != nil { // as a machine that comes back
		t.Fatal(err)
	}
	if got := query(t, primary.URL(), "SELECT a FROM t"); got != "kept" {
		t.Errorf("after its return the old primary has %q", got)
	}
}
