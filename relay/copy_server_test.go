package relay_test

import (
	"errors"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// runOnce enqueues a task and runs what is due, in a server's first database.
func runOnce(t *testing.T, in *devpg.Server, config relay.Config) error {
	t.Helper()
	db := direct(t, in.URL())
	defer db.Close()
	db.Enqueue(t, "TX", 1)
	r, err := relay.New(db.DB, all(), config)
	if err != nil {
		t.Fatal(err)
	}
	return r.RunOnce(t.Context())
}

// A standby has its primary's system identifier and oids, as a base backup and a snapshot have.
func TestAPromotedStandbyStopsNoRelayAndABaseBackupInStagingDoes(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	primary := pgtest.Local(t, nil)
	relaytest.Adopt(t, primary.URL())
	production, staging := relay.Config{Environment: "production"}, relay.Config{Environment: "staging"}
	if err := runOnce(t, primary, production); err != nil {
		t.Fatal(err)
	}
	standby := pgtest.Standby(t, primary)
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := runOnce(t, standby, production); err != nil {
		t.Errorf("the relay after a failover: %v", err)
	}
	if err := runOnce(t, standby, staging); !errors.Is(err, relay.ErrCopy) {
		t.Errorf("the relay of staging: %v", err)
	}
	if err := runOnce(t, standby, relay.Config{}); err != nil {
		t.Errorf("a relay without an environment: %v", err)
	}
}

func TestPgUpgradeStopsNoRelay(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	old := pgtest.Local(t, nil)
	if err := relaytest.Migrate(old.URL()); err != nil {
		t.Fatal(err)
	}
	db := direct(t, old.URL())
	db.Do(t, `CREATE TABLE effect (task_id bigint, attempt int)`)
	if err := runOnce(t, old, relay.Config{}); err != nil {
		t.Fatal(err)
	}
	id := db.Text(t, `SELECT database_id FROM outbox.identity`)
	// the upgrade is to the same version
	db.Do(t, `UPDATE outbox.origin SET server_version = server_version - 1; UPDATE outbox.origin SET row_xid = xmin`)
	db.Close()
	upgraded := pgtest.Upgraded(t, old)
	if err := runOnce(t, upgraded, relay.Config{}); err != nil {
		t.Errorf("the relay after pg_upgrade: %v", err)
	}
	in := direct(t, upgraded.URL())
	if got := in.Text(t, `SELECT database_id FROM outbox.identity`); got != id {
		t.Error("the id is another one")
	}
	if n := in.Int(t, `SELECT count(*) FROM outbox.origin o, outbox.this_database() t
		WHERE (o.system_id, o.server_version) = (t.system_id, t.server_version)`); n != 1 {
		t.Error("it is not noted anew")
	}
}
