package forward_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/faultmap"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// docs/faults.md says what each error of a publisher means.
func TestTheMapOfForwarding(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	answers := map[string]error{
		"forward.Permanent":                     forward.Permanent(refused),
		"an unmarked error":                     refused,
		"forward.TargetUnavailable":             forward.TargetUnavailable(refused, 0),
		"forward.TargetUnavailable with a time": forward.TargetUnavailable(refused, time.Minute),
		"handlers.RetryAfter":                   handlers.RetryAfter(time.Minute, refused),
		"forward.Unavailable":                   forward.Unavailable(refused, 0),
		"no answer in time":                     context.DeadlineExceeded,
	}
	rows := faultmap.Table(t, "Forwarding")
	if len(rows) != len(answers) {
		t.Errorf("%d rows, want %d", len(rows), len(answers))
	}
	for _, row := range rows {
		t.Run(row["error"], func(t *testing.T) {
			t.Parallel()
			answer, known := answers[row["error"]]
			if !known {
				t.Fatal("no such error")
			}
			db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
			to.answers(func(*forward.Event) error { return answer })
			f := forward.Register(reg, placed, slow{to}, forward.Timeout(time.Millisecond))
			enqueue(t, db, 1, nil)
			log := relaytest.Once(t, db.DB, reg, relay.Config{})
			got := strings.Fields(db.Text(t, `SELECT concat_ws(' ', attempt, (SELECT count(*) FROM outbox.dead_task))
				FROM (
				SELECT attempt FROM outbox.task UNION ALL SELECT attempt FROM outbox.dead_task) AS t`))
			if counts := got[0] == "1"; counts != strings.HasPrefix(row["attempt counts"], "yes") {
				t.Errorf("the attempt counts: %v", counts)
			}
			if dead := got[1] == "1"; dead != strings.Contains(row["what follows"], "dead letter at once") {
				t.Errorf("it is a dead letter: %v", dead)
			}
			waits := strings.Contains(row["what follows"], "wait")
			if (f.Health() != nil) != waits || strings.Contains(log, "events are not published for now") != waits {
				t.Errorf("others wait: %v, want %v; log:\n%s", f.Health(), waits, log)
			}
			for level := range strings.SplitSeq(row["log"], ", ") {
				if level, _, _ = strings.Cut(level, " "); level != "INFO" && !strings.Contains(log, "level="+level) {
					t.Errorf("nothing at %s in the log:\n%s", level, log)
				}
			}
		})
	}
}
