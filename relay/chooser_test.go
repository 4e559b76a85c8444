package relay

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/plan"
)

type chooserFunc func(View) []int

func (f chooserFunc) Choose(v View) []int { return f(v) }

func TestAnAnswerOfAChooserThatCannotBeFollowedHarmsNothing(t *testing.T) {
	t.Parallel()
	view := plan.View{Heads: []plan.Candidate{{Type: "A", Room: 3}, {Type: "B", Room: 2, Priority: 1}}, Free: 4, Workers: 10, Types: 2}
	for name, c := range map[string]struct {
		answer func(View) []int
		want   []int
		log    string
	}{
		"valid":         {func(View) []int { return []int{3, 1} }, []int{3, 1}, ""},
		"none":          {func(View) []int { return nil }, []int{0, 0}, ""},
		"short":         {func(View) []int { return []int{1} }, []int{1, 0}, ""},
		"long":          {func(View) []int { return []int{1, 1, 7} }, []int{1, 1}, "3 numbers for 2 heads"},
		"negative":      {func(View) []int { return []int{-1, 1} }, []int{0, 1}, "-1 workers for type A"},
		"above room":    {func(View) []int { return []int{0, 99} }, []int{0, 2}, "99 workers for type B, which may have 2"},
		"above free":    {func(View) []int { return []int{3, 2} }, []int{3, 1}, "2 workers for type B, which may have 1"},
		"panic":         {func(View) []int { panic("it is broken") }, nil, "it panicked: panic: it is broken"},
		"writes into v": {func(v View) []int { v.Heads[0].Room = 50; return []int{50, 0} }, []int{3, 0}, "50 workers for type A, which may have 3"},
	} {
		var log bytes.Buffer
		g := &appChooser{chooser: chooserFunc(c.answer), log: slog.New(slog.NewTextHandler(&log, nil))}
		for range 3 {
			if got, ok := g.choose(view); !slices.Equal(got, c.want) || ok != (c.want != nil) {
				t.Errorf("%s: got %v, ok %t, want %v", name, got, ok, c.want)
			}
		}
		if got := strings.Count(log.String(), "Config.Chooser"); got != min(len(c.log), 1) || !strings.Contains(log.String(), c.log) {
			t.Errorf("%s: logged %q, want once %q", name, log.String(), c.log)
		}
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
