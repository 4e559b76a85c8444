package admin_test

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/devpg"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// program is the output of one of PostgreSQL's programs.
func program(t testing.TB, server *devpg.Server, stdin []byte, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), pgtest.Program(t, server, name), args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, stderr.String())
	}
	return out
}

// restored is another database, with what pg_dump has of this one, as psql restores it: it goes on
// after errors.
func restored(t testing.TB, server *devpg.Server, of, into *database, args ...string) {
	t.Helper()
	dump := program(t, server, nil, "pg_dump", append(args, "--no-owner", "-d", of.URL)...)
	program(t, server, dump, "psql", "-q", "-o", "/dev/null", "-d", into.URL)
}

// A dump of the data alone is counted by the rows of the counters and by the triggers, and its
// unique keys collide with those of ready tasks. Of a part, other things are missing.
func TestARestoreOfTheDataAloneIsRepaired(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	src := relaytest.NewDatabase(t)
	lived(t, src)
	want := summary(t, src.DB)
	if f := found(t, src.DB, admin.RepairOptions{}); f != "" {
		t.Errorf("defects before:\n%s", f)
	}
	parts := [][]string{{"--data-only"}}
	if needs.InCI() {
		parts = append(parts, []string{"--data-only", "-t", "outbox.task", "-t", "outbox.dead_task"},
			[]string{"--data-only", "-T", "outbox.task"},
			[]string{"--data-only", "-T", "outbox.unique_key", "-T", "outbox.headless_key"})
	}
	for i, args := range parts {
		dst := relaytest.Direct(t, relaytest.Migrated(t), "postgres")
		restored(t, server, src, dst, args...)
		done := repaired(t, dst.DB)
		if done == "" {
			t.Errorf("%s did no harm, so the test shows nothing", args)
		}
		if i == 0 {
			for _, part := range []string{
				"count MAIL scheduled: 2 -> 1", "count MAIL dead: 4 -> 2", "count MAIL finished: ",
				"unique_key REPORT: tasks without their key: 2 -> 0",
			} {
				if !strings.Contains(done, part) {
					t.Errorf("the defects lack %q:\n%s", part, done)
				}
			}
			if got := summary(t, dst.DB); got != want {
				t.Errorf("the counts are\n%swant\n%s", got, want)
			}
		}
		if i != 2 {
			behaves(t, dst, int64(src.Int(t, `SELECT max(task_id) FROM outbox.task`)))
		}
		dst.Invariants(t)
	}
	// A whole dump brings all that belongs together.
	dst := relaytest.Direct(t, pgtest.Database(t), "postgres")
	restored(t, server, src, dst)
	if f := found(t, dst.DB, admin.RepairOptions{}); f != "" || summary(t, dst.DB) != want {
		t.Errorf("the defects are\n%s", f)
	}
}

// Logical replication brings the rows, and no sequence.
func TestASwitchOverByLogicalReplicationIsRepaired(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	server := pgtest.Local(t, map[string]string{"wal_level": "logical"})
	src := relaytest.Direct(t, server.URL(), "postgres")
	if err := relaytest.Migrate(server.URL()); err != nil {
		t.Fatal(err)
	}
	src.Do(t, `CREATE DATABASE replica`)
	address := strings.Replace(server.URL(), "/postgres?", "/replica?", 1)
	dst := relaytest.Direct(t, address, "postgres")
	restored(t, server, src, dst, "--schema-only")
	src.Do(t, `CREATE PUBLICATION all_tables FOR ALL TABLES`)
	// Within one cluster CREATE SUBSCRIPTION would wait for itself.
	src.Do(t, `SELECT pg_create_logical_replication_slot('to_replica', 'pgoutput')`)
	dst.Do(t, fmt.Sprintf(`CREATE SUBSCRIPTION from_primary CONNECTION '%s' PUBLICATION all_tables
		WITH (create_slot = false, slot_name = 'to_replica')`, src.URL))
	lived(t, src)
	for i := range 100 {
		enqueue(t, src, "SENT", i)
	}
	src.Do(t, `DELETE FROM outbox.task WHERE task_type = 'SENT'`) // as if done
	src.Do(t, `DELETE FROM outbox.dead_task`)
	last := int64(src.Int(t, `SELECT max(task_id) FROM outbox.task`) + 100)
	want := summary(t, src.DB)
	relaytest.Eventually(t, time.Minute, "the replica has all rows", func() bool {
		notReady := dst.Int(t, `SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'`)
		return notReady == 0 && summary(t, dst.DB) == want
	})
	dst.Do(t, `ALTER SUBSCRIPTION from_primary DISABLE; ALTER SUBSCRIPTION from_primary SET (slot_name = NONE);
		DROP SUBSCRIPTION from_primary`)

	if f := found(t, dst.DB, admin.RepairOptions{}); !strings.Contains(f, "sequence task_task_id_seq: 0 -> ") {
		t.Errorf("the defects are\n%s", f)
	}
	repaired(t, dst.DB)
	if o, err := client(t, dst.DB).Origin(t.Context()); err != nil || !o.Copy {
		t.Errorf("a replica is no copy: %+v, %v", o, err)
	}
	adopted, err := client(t, dst.DB).Adopt(t.Context(), admin.AdoptOptions{KeepID: true})
	if err != nil || adopted.DatabaseID != src.Text(t, `SELECT database_id FROM outbox.identity`) {
		t.Errorf("adopted with its id: %+v, %v", adopted, err)
	}
	if got := summary(t, dst.DB); got != want {
		t.Errorf("the counts are\n%swant\n%s", got, want)
	}
	behaves(t, dst, last)
}
