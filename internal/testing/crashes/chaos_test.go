//go:build unix

package crashes_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/needs"
)

// Relays are killed for ten seconds, and nothing is lost, doubled or left behind. internal/testing/chaos is
// a module of its own, as it has a NATS server.
func TestTenSecondsOfChaos(t *testing.T) {
	needs.Long(t) // .ci/run runs the program itself
	t.Parallel()
	program := filepath.Join(t.TempDir(), "chaos")
	if out, err := exec.Command("go", "build", "-o", program, "../chaos").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), program, "-faults", "kill", "-for", "10s", "-tasks", "3000", "-producers", "1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	} else {
		t.Logf("%s", out)
	}
}
