package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
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
