package relay_test

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// inTheLog finds the entries of the server's log that an operator would look into.
var inTheLog = regexp.MustCompile(`(?m)^.*(?:WARNING|ERROR|FATAL|PANIC):.*(?:\n.*(?:DETAIL|HINT|CONTEXT|STATEMENT):.*|\n\t.*)*`)

// Processes start, migrate, enqueue on whatever they have, run tasks and stop.
func TestNormalWorkLeavesNoErrorInTheServersLog(t *testing.T) {
	needs.CI(t)
	server := pgtest.Local(t, map[string]string{"log_min_messages": "warning", "log_min_error_statement": "warning"})
	first := direct(t, server.URL())
	file := filepath.Join(filepath.Dir(first.Text(t, `SHOW data_directory`)), "log")
	before, err := os.ReadFile(file) // of the server's start
	if err != nil {
		t.Fatal(err)
	}
	var replicas sync.WaitGroup
	for range 4 { // replicas of the first deploy
		replica := direct(t, server.URL())
		replicas.Go(func() {
			patient := schema.LockTimeout(time.Minute) // a busy machine takes more than the default for a version
			if err := errors.Join(schema.Migrate(t.Context(), replica.DB, patient),
				schema.GrantRoles(t.Context(), replica.DB, patient)); err != nil {
				t.Error(err)
			}
		})
	}
	replicas.Wait()
	db := adopt(t, server.URL())
	for _, driver := range drivers {
		pool := direct(t, server.URL(), driver)
		running := run(t, pool, all(), relay.Config{ListenDSN: server.URL()})
		for _, taskType := range []string{"TX", "BATCH", "LEASED"} {
			db.Enqueue(t, taskType, 20)
		}
		conn, err := pool.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := outbox.Enqueue(t.Context(), conn, "NONE", 1); !errors.Is(err, outbox.ErrNoTransaction) {
			t.Errorf("got %v, want ErrNoTransaction", err)
		}
		for _, statement := range []string{"BEGIN", "", "ROLLBACK"} {
			if statement == "" {
				_, err = outbox.Enqueue(t.Context(), conn, "NONE", 1, outbox.Unique("k"))
			} else {
				_, err = conn.ExecContext(t.Context(), statement)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		again := outbox.InTx(t.Context(), pool.DB, func(tx *sql.Tx) error {
			for range 2 {
				if _, err := outbox.Enqueue(t.Context(), tx, "TX", relaytest.Payload{}, outbox.Unique("once")); err != nil {
					return err
				}
			}
			_, err := outbox.Stats(t.Context(), tx)
			return err
		})
		if again != nil {
			t.Error(again)
		}
		db.Emptied(t, 0)
		if _, err := doctor.Check(t.Context(), pool.DB); err != nil {
			t.Error(err)
		}
		running.Stop()
	}
	log, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range inTheLog.FindAllString(string(log[len(before):]), -1) {
		t.Errorf("in the server's log:\n%s", strings.TrimSpace(found))
	}
}
