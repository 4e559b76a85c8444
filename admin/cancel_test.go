package admin_test

import (
	"slices"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// Each task has its result, at its place, and the entry of the audit log names those that changed.
func TestCancelAndRunNowSayWhatBecameOfEachTask(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_id, task_type, run_at) OVERRIDING SYSTEM VALUE
			SELECT id, 'A', now() + wait * interval '1 hour'
			  FROM (VALUES (11, 0), (12, 1), (13, 1), (14, 0)) AS task (id, wait);
		UPDATE outbox.task SET state = 'leased', relay_id = gen_random_uuid(),
			lease_token = gen_random_uuid(), attempted_at = now() WHERE task_id = 14`)
	c := client(t, db.DB, admin.Config{Actor: "ada", Tool: "test"})
	due, err := c.RunNow(t.Context(), []int64{11, 13, 99, 13})
	want := []outbox.RunNowResult{outbox.RunNowNotScheduled, outbox.RunNowDue,
		outbox.RunNowNotScheduled, outbox.RunNowNotScheduled}
	if err != nil || !slices.Equal(due, want) {
		t.Errorf("RunNow: %v, %v", due, err)
	}
	canceled, err := c.Cancel(t.Context(), []int64{99, 14, 12, 12})
	wantCanceled := []outbox.CancelResult{outbox.CancelNotFound, outbox.CancelRequested,
		outbox.CancelRemoved, outbox.CancelNotFound}
	if err != nil || !slices.Equal(canceled, wantCanceled) {
		t.Errorf("Cancel: %v, %v", canceled, err)
	}
	const entries = `SELECT string_agg(action || ': ' || target, '; ' ORDER BY entry_id) FROM outbox.audit`
	if got := db.Text(t, entries); got != "run_now: task 13; cancel: tasks 12, 14" {
		t.Errorf("the audit log has %s", got)
	}
}
