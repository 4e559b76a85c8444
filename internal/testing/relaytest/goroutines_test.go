package relaytest

import (
	"context"
	"strings"
	"testing"
)

// waits is where the goroutines of these tests are.
func waits(release chan struct{}) { <-release }

// I11 is checked for one relay beside others: what is started under it, however deep, is its own,
// and counts until it has ended, unless the test says that it leaves it.
func TestGoroutinesOfOneRelayAreToldFromOthers(t *testing.T) {
	var mine, other, idle goroutines
	releaseMine, releaseOther := make(chan struct{}), make(chan struct{})
	defer close(releaseOther)
	mine.in(t.Context(), func(context.Context) {
		go func() { go waits(releaseMine) }()
	})
	other.in(t.Context(), func(context.Context) { go waits(releaseOther) })
	idle.in(t.Context(), func(context.Context) {})
	// Each has one goroutine, once the one between has ended and both have got to where they wait.
	waiting := func(g *goroutines) bool {
		stacks := g.stacks(t)
		return len(stacks) == 1 && strings.Contains(stacks[0], "relaytest.waits")
	}
	Eventually(t, endWithin, "both wait", func() bool { return waiting(&mine) && waiting(&other) })
	idle.ended(t)
	other.left = []string{"relaytest.waits"}
	other.ended(t)
	close(releaseMine)
	mine.ended(t)
}
