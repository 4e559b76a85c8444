package store

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestAnErrorInTheTimelineIsCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	const most = maxEventError
	for text, want := range map[string]int{
		"": 0, strings.Repeat("x", most): most, strings.Repeat("x", most+1): most,
		strings.Repeat("x", most-1) + "é": most - 1, strings.Repeat("x", most-2) + "é": most,
		strings.Repeat("x", most-2) + "€": most - 2,
	} {
		if got := cut(text); len(got) != want || !strings.HasPrefix(text, got) {
			t.Errorf("of %d bytes %d stay, want %d", len(text), len(got), want)
		}
	}
}

func TestATimelineSaysWhichAttemptsFailedAndHowManyWereLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		events   string
		attempts string // with the present payload
		lost     int
	}{
		{"", "", 0},
		{"no JSON", "", 0},
		{"lost", "lost", 1},
		{"failed lost lost", "failed lost lost", 2},
		{"lost lost failed", "lost lost failed", 0},
		{"lost failed lost", "lost failed lost", 1},
		{"failed replaced lease_lost", "lease_lost", 0},
		{"failed dead redriven throttled lost", "failed lost", 1},
	} {
		timeline := "no JSON"
		if c.events != "no JSON" {
			timeline = `[{"event": "` + strings.ReplaceAll(c.events, " ", `"}, {"event": "`) + `"}]`
		}
		r := &Row{}
		if c.events != "" {
			r.read = &columns{Timeline: json.RawMessage(timeline)}
		}
		var attempts []string
		for _, a := range attemptErrors(r.uses().Timeline) {
			attempts = append(attempts, a.Error)
		}
		got, lost := strings.Join(attempts, " "), r.lostInARow()
		if got != c.attempts || lost != c.lost {
			t.Errorf("%s: attempts %q, %d lost in a row, want %q, %d", c.events, got, lost, c.attempts, c.lost)
		}
	}
}
