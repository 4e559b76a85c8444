package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// The demo, shortened; CI runs all of it on each push. Relays die by SIGKILL while they run tasks;
// no task is lost, no credit is granted twice.
func TestDemoKilledRelaysLoseNothing(t *testing.T) {
	needs.Long(t)
	url := pgtest.Database(t)
	d := demo{signUps: 100, kills: 3, relays: 2, lasting: 4 * time.Second}
	var out bytes.Buffer
	if err := d.run(t.Context(), url, &out); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	if err := d.run(t.Context(), url, &out); err == nil || !strings.Contains(err.Error(), "needs a database without any") {
		t.Errorf("second run on the same database: %v, want a refusal", err)
	}
}

func TestDemoNamesWhatIsWrong(t *testing.T) {
	db := openDatabase(t, pgtest.Database(t))
	inbox, err := startSink()
	relaytest.Must(err)
	defer inbox.close()
	var out bytes.Buffer
	if err := (demo{}).count(t.Context(), db, inbox, 1, &out); err != nil {
		t.Errorf("all well: %v", err)
	}
	relaytest.Must(signUp(t.Context(), db, "a@example.com"))
	if _, err := db.Exec(`INSERT INTO ledger SELECT usr_id, 1 FROM usr, generate_series(1, 2);
		INSERT INTO outbox.dead_task (task_id, task_type, payload, priority, attempt, max_attempts, run_at, created_at,
		reason) VALUES (99, 'A', '{}', 0, 1, 1, now(), now(), 'handler')`); err != nil {
		t.Fatal(err)
	}
	err = demo{signUps: 2, kills: 3}.count(t.Context(), db, inbox, 0, &out)
	for _, want := range []string{"users: 1", "credits: 2 to 1 users; 1 repeated", "mails: 0", "tasks left: 2",
		"dead letters: 1", "tasks killed: 0"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
