package schema

import (
	"fmt"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

// A timeline in short is a letter for each event: r for redriven, R for replaced, others for failed.
func TestATimelineKeepsTheNewestEventsAndTheBeginOfTheTrouble(t *testing.T) {
	db := open(t, pgtest.Database(t))
	migrate(t, db)
	of := func(short string) string {
		var events []string
		for _, c := range short {
			kind := "failed"
			switch c {
			case 'r':
				kind = "redriven"
			case 'R':
				kind = "replaced"
			}
			events = append(events, fmt.Sprintf(`{"event": "%s", "c": "%c"}`, kind, c))
		}
		return "[" + strings.Join(events, ",") + "]"
	}
	for _, c := range []struct{ timeline, added, want string }{
		{"", "a", "a"},
		{"abc", "", "abc"},
		{"abcdefghijklmnopqst", "u", "abcdefghijklmnopqstu"},
		{"abcdefghijklmnopqstu", "v", "acdefghijklmnopqstuv"},
		{"acdefghijklmnopqstuv", "wx", "aefghijklmnopqstuvwx"},
		{"abcrdefghijklmnopqst", "u", "bcrdefghijklmnopqstu"},
		{"rdefghijklmnopqstuvw", "x", "rdfghijklmnopqstuvwx"},
		{"rdefghijklmnopqstuvw", "xy", "rdghijklmnopqstuvwxy"},
		{"rdRefghijklmnopqstuv", "wx", "rReghijklmnopqstuvwx"},
		{"defghijklmnopqstuvwx", "r", "efghijklmnopqstuvwxr"},
	} {
		got := scan[string](t, db, `SELECT string_agg(e ->> 'c', '' ORDER BY i) FROM jsonb_array_elements(outbox.add_events(NULLIF($1::jsonb, '[]'), $2::jsonb)) WITH ORDINALITY AS a (e, i)`,
			of(c.timeline), of(c.added))
		if got != c.want {
			t.Errorf("%s with %s: got %s, want %s", c.timeline, c.added, got, c.want)
		}
	}
	// Throttled runs in a row are one entry, so that they push out nothing.
	got := scan[string](t, db, `WITH RECURSIVE run (n, timeline) AS (
		SELECT 0, '[{"event": "redriven", "by": "ada"}]'::jsonb UNION ALL
		SELECT n + 1, outbox.add_events(timeline, jsonb_build_array(jsonb_build_object('event', CASE WHEN n IN (30, 31) THEN 'failed' ELSE 'throttled' END, 'attempt', n))) FROM run WHERE n < 60)
		SELECT string_agg(concat_ws(' ', e ->> 'event', e ->> 'attempt', e ->> 'times', (e ->> 'last')::timestamptz > (e ->> 'at')::timestamptz), ', ' ORDER BY i)
		  FROM run, jsonb_array_elements(timeline) WITH ORDINALITY AS a (e, i) WHERE n = 60`)
	if want := "redriven, throttled 29 30 t, failed 30, failed 31, throttled 59 28 t"; got != want {
		t.Errorf("throttled runs: %s, want %s", got, want)
	}
	const when = `SELECT concat((e ->> 'at')::timestamptz > now() - interval '1 minute', ' ', f ->> 'at')
		FROM (SELECT a -> 0 AS e, a -> 1 AS f FROM outbox.add_events(NULL, '[{"event": "failed"}, {"event": "lost", "at": "then"}]') AS a) AS b`
	if got := scan[string](t, db, when); got != "t then" {
		t.Errorf("the times are %s, want now and then", got)
	}
}
