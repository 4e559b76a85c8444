package relaytest

import (
	"context"
	"strings"
	"testing"
)

// waits is where the goroutines of these tests are.
func waits(release chan struct{}) { <-release }

// I11 is checked for one relay beside others: what is started under it, however deep, is its own, and counts until it has ended,
// unless the test says that it leaves it.
func TestGoroutinesOfOneRelayAreToldFromOthers(t *testing.T) {
	var mine, other, idle goroutines
	releaseMine, releaseOther := make(chan struct{}), make(chan struct{})
	defer close(releaseOther)
	mine.in(t.Context(), func(context.Context) {
		go func() { go waits(releaseMine) }()
	})
	other.in(t.Context(), func(context.Context) { go waits(releaseOther) })
	idle.in(t.Context(), func(context.Context) {})
	Eventually(t, endWithin, "both wait", func() bool { return len(mine.stacks(t)) == 1 && len(other.stacks(t)) == 1 })
	if left := mine.stacks(t); !strings.Contains(left[0], "relaytest.waits") {
		t.Errorf("got the stack %s, want one in waits", left[0])
	}
	idle.ended(t)
	other.left = []string{"relaytest.waits"}
	other.ended(t)
	close(releaseMine)
	mine.ended(t)
}
