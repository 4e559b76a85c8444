package main

import (
	"regexp"
	"testing"
)

// A task that was throttled, failed six times, died, was redriven and then succeeded.
func TestShowHasTheTimelineOfATask(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.Do(t, `INSERT INTO outbox.done_task (task_id, task_type, payload, run_at, created_at, attempted_at, finished_at, keep_until, priority, attempt, timeline)
		SELECT 1, 'MAIL', '{}', now(), now(), now(), now(), now() + interval '1 day', 0, 1,
		       jsonb_agg(jsonb_build_object('event', 'failed', 'attempt', a, 'at', now() - interval '1 hour' + a * interval '1 second', 'us', 1500000,
		         'error', 'no route ' || a, 'reason', CASE a WHEN 6 THEN 'attempts' ELSE '' END) ORDER BY a)
		       || jsonb_build_object('event', 'redriven', 'at', now() - interval '1 minute', 'by', 'admin')
		       || jsonb_build_object('event', 'throttled', 'attempt', 1, 'at', now() - interval '50 seconds', 'last', now() - interval '40 seconds', 'times', 7, 'error', '429')
		       || jsonb_build_object('event', 'throttled', 'attempt', 1, 'at', now() - interval '30 seconds', 'us', 500000, 'error', '503') FROM generate_series(1, 6) a`)
	const when = `[0-9-]+ [0-9:]+ UTC \([^)]+\)  `
	want := regexp.MustCompile(`(?m)^timeline +` + when + `attempt 1 failed after 1\.500s: no route 1
 +` + when + `attempt 2 failed after 1\.500s: no route 2
 +` + when + `attempt 3 failed after 1\.500s: no route 3
 +` + when + `attempt 4 failed after 1\.500s: no route 4
 +` + when + `attempt 5 failed after 1\.500s: no route 5
 +` + when + `attempt 6 failed after 1\.500s, dead letter \(attempts\): no route 6
 +` + when + `redriven by admin
 +` + when + `attempt 1 throttled 7 times until [0-9-]+ [0-9:]+ UTC \([^)]+\): 429
 +` + when + `attempt 1 throttled after 0\.500s: 503
 +` + when + `attempt 1 finished$`)
	for _, group := range []string{"tasks", "history"} {
		if out := db.ok(t, group, "show", "1"); !want.MatchString(out) {
			t.Errorf("outbox %s show 1:\n%s", group, out)
		}
	}
}
