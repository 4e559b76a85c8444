package admin_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/relaytest"
)

func errOf(_ admin.Taken, _ string, err error) error { return err }

func TestBadArgumentsAreRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	c, ctx := unreachable(t), t.Context()
	refused := func(call string, err error, want string) {
		t.Helper()
		if !errors.Is(err, outbox.ErrInvalidOption) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want ErrInvalidOption with %q", call, err, want)
		}
	}
	tasks := func(taskType string, state admin.State, after, want string) {
		t.Helper()
		_, _, err := c.Tasks(ctx, taskType, state, admin.Page{After: after})
		refused("Tasks, "+taskType+", "+string(state)+", "+after, err, want)
	}
	tasks("A", "", "", "state")
	tasks("A", "late", "", "state")
	tasks("", admin.Ready, "", "task type")
	tasks("", admin.Leased, "", "task type")
	tasks("A\x00", admin.Ready, "", "task type")
	tasks("\xff", admin.Dead, "", "task type")
	tasks("A", admin.Scheduled, "scheduled.9223372036854775807.1", "Page.After")
	for _, after := range []string{
		"x", "ready.1.2", "ready.1.2.3.4", "waiting.1", "ready.1.2.x", "ready.40000.0.1", "ready.0.0.-1",
		"ready.0.0.9223372036854775808", "ready.0.0.1; DROP TABLE x",
	} {
		tasks("A", admin.Ready, after, "Page.After")
	}
	for name, bad := range map[string]time.Duration{"A": 0, "\xff": time.Hour} {
		_, err := c.Samples(ctx, name, bad)
		refused("Samples", err, "")
	}
	some := admin.Filter{Type: "X"}
	for want, b := range map[string]struct {
		filter admin.Filter
		page   admin.Page
	}{
		"Filter.Type":               {filter: admin.Filter{Type: "a\x00"}},
		"Filter.Error: \"a\\xff\"":  {filter: admin.Filter{Error: "a\xff"}},
		"Filter.Reason":             {filter: admin.Filter{Reason: "old age"}},
		"Filter.OlderThan":          {filter: admin.Filter{OlderThan: -1}},
		"Filter.DiedAfter":          {filter: admin.Filter{DiedAfter: time.Unix(1<<50, 0)}},
		"Filter.DiedBefore":         {filter: admin.Filter{DiedBefore: time.Unix(-1<<50, 0)}},
		"Filter.IDs":                {filter: admin.Filter{IDs: make([]int64, 1001)}},
		"Page.Limit: -1":            {some, admin.Page{Limit: -1}},
		"Page.Limit: 1001":          {some, admin.Page{Limit: 1001}},
		"Page.MaxScan: -1":          {some, admin.Page{MaxScan: -1}},
		"Page.MaxScan: 100001":      {some, admin.Page{MaxScan: 100_001}},
		`Page.After: "scheduled.1"`: {some, admin.Page{After: "scheduled.1"}},
		`Page.After: "dead.`:        {some, admin.Page{After: "dead.9223372036854775807.1"}},
	} {
		b.filter.All = true // Redrive and Purge refuse it for no other reason
		_, _, err := c.DeadLetters(ctx, b.filter, b.page)
		refused("DeadLetters", err, want)
		_, _, err = c.CountDeadLetters(ctx, b.filter, b.page)
		refused("CountDeadLetters", err, want)
		refused("Redrive", errOf(c.Redrive(ctx, b.filter, b.page)), want)
		refused("Purge", errOf(c.Purge(ctx, b.filter, b.page)), want)
		if b.page != (admin.Page{}) {
			_, _, err = c.Audit(ctx, b.page)
			refused("Audit", err, want)
			_, _, err = c.Tasks(ctx, "A", admin.Ready, b.page)
			refused("Tasks", err, want)
		}
	}
	refused("Redrive", errOf(c.Redrive(ctx, admin.Filter{}, admin.Page{})), "would redrive all")
	refused("Purge", errOf(c.Purge(ctx, admin.Filter{}, admin.Page{})), "would purge all")
	_, _, err := c.EveryPage(ctx, c.Purge, admin.Filter{}, 0)
	refused("EveryPage", err, "would take all")
	_, _, err = c.EveryPage(ctx, c.Purge, some, -1)
	refused("EveryPage", err, "-1 a second")
	_, err = c.HandBack(ctx, "'; --")
	refused("HandBack", err, "which is a UUID")
	refused("PauseSchedule", c.PauseSchedule(ctx, "\x00"), "")
	for _, name := range []string{"", "a\nb", "\xff", strings.Repeat("x", 129)} {
		for _, err := range []error{c.PauseType(ctx, name), c.ResumeType(ctx, name)} {
			if !errors.Is(err, outbox.ErrInvalidType) {
				t.Errorf("%q: got %v, want ErrInvalidType", name, err)
			}
		}
	}
}

func TestWhatIsNotThereIsNotFound(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c, ctx := client(t, db.DB), t.Context()
	for _, err := range []error{c.PauseSchedule(ctx, "none"), c.ResumeSchedule(ctx, "none"), c.RemoveSchedule(ctx, "")} {
		if !errors.Is(err, admin.ErrNotFound) {
			t.Errorf("got %v, want ErrNotFound", err)
		}
	}
	err := client(t, db.DB, admin.Options{Schema: "elsewhere"}).PauseType(ctx, "TX")
	if err == nil || !strings.Contains(err.Error(), "elsewhere") {
		t.Errorf("a pause in a schema that does not exist: got %v", err)
	}
}
