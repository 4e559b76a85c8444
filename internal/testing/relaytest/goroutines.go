package relaytest

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// labelled is the key of the label that tells the goroutines of one relay from those of others.
// Goroutines have the labels of those that started them, so those of the handlers and of the
// drivers under a relay's calls have it as well.
const labelled = "outbox_relay"

var runs atomic.Int64

// goroutines are those that one run of a relay started, whatever else runs in the process.
type goroutines struct {
	label string
	left  []string // functions of the goroutines that the test leaves behind
}

// in runs f as the first of them.
func (g *goroutines) in(ctx context.Context, f func(ctx context.Context)) {
	g.label = fmt.Sprint(runs.Add(1))
	pprof.Do(ctx, pprof.Labels(labelled, g.label), f)
}

// endWithin is how long after a run the drivers may take to end what they had begun: a context of
// theirs has ended, and a goroutine of database/sql or of a driver is about to notice.
const endWithin = 30 * time.Second

// ended checks I11: none is left. Goroutines that the test leaves behind do not count.
func (g *goroutines) ended(t testing.TB) {
	t.Helper()
	deadline := time.After(endWithin)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		stacks := g.stacks(t)
		if len(stacks) == 0 {
			return
		}
		select {
		case <-time.After(pause):
		case <-deadline:
			t.Errorf("I11: %v after the relay has returned it has goroutines:\n%s", endWithin, strings.Join(stacks, "\n\n"))
			return
		}
	}
}

// stacks are those of the goroutines that are there, one for several that are at the same place.
func (g *goroutines) stacks(t testing.TB) []string {
	t.Helper()
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		t.Fatal(err)
	}
	label := regexp.MustCompile(fmt.Sprintf(`(?m)^# labels: .*"%s":"%s"`, labelled, g.label))
	return slices.DeleteFunc(strings.Split(profile.String(), "\n\n"), func(stack string) bool {
		return !label.MatchString(stack) || slices.ContainsFunc(g.left, func(f string) bool {
			return strings.Contains(stack, f)
		})
	})
}
