package main

import (
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/needs"
)

// The demo, shortened; CI runs all of it on each push. Relays die by SIGKILL while they run tasks; no task is lost, no credit is granted twice.
func TestDemoKilledRelaysLoseNothing(t *testing.T) {
	needs.Long(t)
	db := testDatabase(t)
	d := demo{signUps: 100, kills: 3, relays: 2, lasting: 4 * time.Second, linger: 300 * time.Millisecond, seed: 1}
	var out safeBuffer
	t.Cleanup(func() {
		if t.Failed() {
			logRows(t, db, "outbox.relay", "outbox.task", "outbox.running", "outbox.dead_task")
		}
	})
	found, err := d.run(t.Context(), db, &out)
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	found.print(&out)
	t.Logf("\n%s", &out)
	if err := found.check(); err != nil {
		t.Error(err)
	}
	if _, err := d.run(t.Context(), db, &out); err == nil || !strings.Contains(err.Error(), "needs a database without any") {
		t.Errorf("second run on the same database: %v, want a refusal", err)
	}
}

func logRows(t *testing.T, db *database, tables ...string) {
	t.Helper()
	for _, table := range tables {
		var rows string
		err := db.QueryRow("SELECT coalesce(string_agg(to_jsonb(r)::text, E'\n'), '') FROM (SELECT * FROM " + table + " LIMIT 20) r").Scan(&rows)
		t.Logf("%s: %v\n%s", table, err, rows)
	}
}

func TestDemoNamesWhatIsWrong(t *testing.T) {
	good := outcome{demo: demo{signUps: 10, kills: 3}, users: 10, credits: 10, credited: 10, mails: 12, mailed: 10, running: []int{2, 0, 1}}
	if err := good.check(); err != nil {
		t.Errorf("all well: %v", err)
	}
	for want, change := range map[string]func(o *outcome){
		"users: 9":                          func(o *outcome) { o.users = 9 },
		"credits: 11 to 10 users":           func(o *outcome) { o.credits = 11 },
		"credits: 10 to 9 users":            func(o *outcome) { o.credited = 9 },
		"mails: 12 to 9 users":              func(o *outcome) { o.mailed = 9 },
		"tasks left: 1":                     func(o *outcome) { o.tasksLeft = 1 },
		"dead: 1":                           func(o *outcome) { o.dead = 1 },
		"relays killed: 2":                  func(o *outcome) { o.running = []int{1, 1} },
		"tasks were running at 1 of 3 kill": func(o *outcome) { o.running = []int{0, 0, 9} },
	} {
		bad := good
		change(&bad)
		if err := bad.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
