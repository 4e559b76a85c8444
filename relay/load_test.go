package relay

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/plan"
)

func TestAnAnswerOfWorkersByTypeThatCannotBeFollowedHarmsNothing(t *testing.T) {
	t.Parallel()
	load := []plan.Load{{Type: "A", Running: 3, Waiting: true, Priority: 1, Age: time.Second}, {Type: "B"}}
	for name, c := range map[string]struct {
		ask  func(context.Context, Load) map[string]int
		want map[string]int
		log  string
	}{
		"valid":          {func(context.Context, Load) map[string]int { return map[string]int{"A": 3, "B": 0} }, map[string]int{"A": 3, "B": 0}, ""},
		"none":           {func(context.Context, Load) map[string]int { return nil }, nil, ""},
		"another type":   {func(context.Context, Load) map[string]int { return map[string]int{"C": 1} }, map[string]int{"C": 1}, "task_type=C"},
		"panic":          {func(context.Context, Load) map[string]int { panic("it is broken") }, nil, "panic: it is broken"},
		"writes into it": {func(_ context.Context, l Load) map[string]int { l.Types[0].Type = "C"; return nil }, nil, ""},
		"all of the load": {func(_ context.Context, l Load) map[string]int {
			if l.Free != 4 || len(l.Types) != 2 || l.Types[0] != (TypeLoad{"A", 3, true, 1, time.Second}) {
				panic(l)
			}
			return nil
		}, nil, ""},
	} {
		var log bytes.Buffer
		b := bounds{ctx: t.Context(), ask: c.ask, types: map[string]bool{"A": true, "B": true}, log: slog.New(slog.NewTextHandler(&log, nil))}
		for range 3 {
			if got := b.of(4, load); !maps.Equal(got, c.want) {
				t.Errorf("%s: got %v, want %v", name, got, c.want)
			}
		}
		if got := strings.Count(log.String(), "Config.WorkersByType"); got != min(len(c.log), 1) || !strings.Contains(log.String(), c.log) {
			t.Errorf("%s: logged %q, want once %q", name, log.String(), c.log)
		}
	}
}

// The app may keep the map that it returned, and write into it.
func TestTheBoundsAreThoseOfTheCall(t *testing.T) {
	t.Parallel()
	kept, calls := map[string]int{}, 0
	b := bounds{ctx: t.Context(), ask: func(context.Context, Load) map[string]int {
		calls++
		kept["A"] = calls
		return kept
	}, types: map[string]bool{"A": true}, log: slog.New(slog.DiscardHandler)}
	first, second := b.of(4, nil), b.of(4, nil)
	kept["A"] = 7
	if first["A"] != 1 || second["A"] != 2 {
		t.Errorf("the bounds are %v and %v, want 1 and 2", first, second)
	}
}

func TestTheLatestNameOfAWakeUpCounts(t *testing.T) {
	t.Parallel()
	r := &relayRun{named: make(chan string, 1)}
	for _, task := range []string{"0 1 TX", "0 2 LEASED", ""} {
		r.wakeNamed(task)
	}
	if got := <-r.named; got != "" {
		t.Errorf("the wake-up names %q, want none, as the last one", got)
	}
}
