package admin_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// second is the error of a call.
func second[T any](_ T, err error) error { return err }

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
		_, err := c.Tasks(ctx, admin.TaskQuery{Type: taskType, State: state, After: after})
		refused("Tasks, "+taskType+", "+string(state)+", "+after, err, want)
	}
	tasks("A", "", "", "TaskQuery.State")
	tasks("A", "late", "", "TaskQuery.State")
	tasks("", admin.StateReady, "", "TaskQuery.Type")
	tasks("", admin.StateLeased, "", "TaskQuery.Type")
	tasks("A\x00", admin.StateReady, "", "TaskQuery.Type")
	tasks("\xff", admin.StateDead, "", "TaskQuery.Type")
	tasks("A", admin.StateScheduled, "scheduled.9223372036854775807.1", "After")
	for _, after := range []string{
		"x", "ready.1.2", "ready.1.2.3.4", "waiting.1", "ready.1.2.x", "ready.40000.0.1", "ready.0.0.-1",
		"ready.0.0.9223372036854775808", "ready.0.0.1; DROP TABLE x",
	} {
		tasks("A", admin.StateReady, after, "After")
	}
	for _, bad := range []admin.SampleQuery{{Last: -1}, {Type: "\xff"}} {
		_, err := c.Samples(ctx, bad)
		refused("Samples", err, "")
	}
	some := admin.DeadFilter{Type: "X"}
	for want, f := range map[string]admin.DeadFilter{
		"DeadFilter.Type":              {Type: "a\x00"},
		"DeadFilter.Error: \"a\\xff\"": {Error: "a\xff"},
		"DeadFilter.Reason":            {Reason: "old age"},
		"DeadFilter.OlderThan":         {OlderThan: -1},
		"DeadFilter.DiedAfter":         {DiedAfter: time.Unix(1<<50, 0)},
		"DeadFilter.DiedBefore":        {DiedBefore: time.Unix(-1<<50, 0)},
		"DeadFilter.IDs":               {IDs: make([]int64, 1001)},
	} {
		f.All = true // Redrive and Purge refuse it for no other reason
		_, err := c.DeadLetters(ctx, admin.DeadQuery{Filter: f})
		refused("DeadLetters", err, want)
		_, err = c.CountDeadLetters(ctx, admin.DeadQuery{Filter: f})
		refused("CountDeadLetters", err, want)
		_, err = c.DeadGroups(ctx, admin.DeadQuery{Filter: f})
		refused("DeadGroups", err, want)
		refused("Redrive", second(c.Redrive(ctx, f, admin.Bulk{})), want)
		refused("Purge", second(c.Purge(ctx, f, admin.Bulk{})), want)
	}
	for want, q := range map[string]admin.DeadQuery{
		"Limit: -1": {Limit: -1}, "Limit: 1001": {Limit: 1001}, "MaxScan: -1": {MaxScan: -1},
		"MaxScan: 100001": {MaxScan: 100_001}, `After: "scheduled.1"`: {After: "scheduled.1"},
		`After: "dead.`: {After: "dead.9223372036854775807.1"},
	} {
		_, err := c.DeadLetters(ctx, q)
		refused("DeadLetters", err, want)
		_, err = c.CountDeadLetters(ctx, q)
		refused("CountDeadLetters", err, want)
		_, err = c.DeadGroups(ctx, q)
		refused("DeadGroups", err, want)
		if q.MaxScan == 0 {
			_, err = c.Audit(ctx, admin.AuditQuery{After: q.After, Limit: q.Limit})
			refused("Audit", err, want)
			_, err = c.Tasks(ctx, admin.TaskQuery{Type: "A", State: admin.StateReady, After: q.After, Limit: q.Limit})
			refused("Tasks", err, want)
		}
	}
	refused("Redrive", second(c.Redrive(ctx, admin.DeadFilter{}, admin.Bulk{})), "would redrive all")
	refused("Purge", second(c.Purge(ctx, admin.DeadFilter{}, admin.Bulk{})), "would purge all")
	refused("Purge", second(c.Purge(ctx, some, admin.Bulk{WithoutKey: true})), "Bulk.WithoutKey")
	for want, bad := range map[string]admin.Bulk{
		"Bulk.Limit: -1": {Limit: -1}, "Bulk.PerSecond: -1": {PerSecond: -1}, "Bulk.Timeout: -1ns": {Timeout: -1},
		`After: "x"`: {After: "x"},
	} {
		refused("Redrive", second(c.Redrive(ctx, some, bad)), want)
	}
	_, err := c.HandBack(ctx, "'; --")
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
	err := client(t, db.DB, admin.Config{Schema: "elsewhere"}).PauseType(ctx, "TX")
	if err == nil || !strings.Contains(err.Error(), "elsewhere") {
		t.Errorf("a pause in a schema that does not exist: got %v", err)
	}
}
