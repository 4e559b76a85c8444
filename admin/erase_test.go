package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// The steps of docs/guide/personal-data.md leave nothing of a person in a table of the outbox, and all of
// another one.
func TestNothingOfAPersonIsLeftAfterTheStepsOfTheGuide(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	type mail struct {
		UserID int    `json:"user_id"`
		Email  string `json:"email"`
	}
	reg := handlers.New()
	of := outbox.NewTaskType[mail]("SEND_MAIL")
	handlers.Leased(reg, of, func(_ context.Context, task *outbox.Task[mail]) error {
		if task.Headers["dies"] != "" {
			return handlers.Dead(errors.New("no mailbox " + task.Payload.Email))
		}
		return task.SetResult("sent to " + task.Payload.Email)
	}, handlers.Retention(time.Hour))
	for id, email := range map[int]string{7: "ada@example.com", 8: "eve@example.com"} {
		who := mail{id, email}
		relaytest.EnqueueAll(db.DB, of.New(who, outbox.Unique("done "+email), outbox.OrderedBy(email)),
			of.New(who, outbox.Unique("dead "+email), outbox.Headers(map[string]string{"dies": email})),
			of.New(who, outbox.Unique("waits "+email), outbox.GroupBy(email), outbox.After(time.Hour)))
	}
	relaytest.Once(t, db.DB, reg, relay.Config{})
	tables := strings.Fields(db.Text(t, `SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class
		WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'`))
	has := func(email string) (in []string) {
		for _, table := range tables {
			if db.Int(t, `SELECT count(*) FROM outbox.`+table+` AS t WHERE to_jsonb(t)::text LIKE '%' || $1 || '%'`, email) > 0 {
				in = append(in, table)
			}
		}
		return in
	}
	const all = "dead_task done_task task unique_key"
	if got := strings.Join(has("ada@"), " "); got != all {
		t.Fatalf("ada is in %s, want %s", got, all)
	}
	c := client(t, db.DB, admin.Config{Actor: "ops", Tool: "test"})
	person := admin.Filter{Payload: json.RawMessage(`{"user_id": 7}`)}
	if r, err := c.Cancel(t.Context(), person, admin.Bulk{}); err != nil || len(r.IDs) != 1 {
		t.Errorf("canceled %v, %v", r.IDs, err)
	}
	if r, err := c.Purge(t.Context(), person, admin.Bulk{}); err != nil || len(r.IDs) != 1 {
		t.Errorf("purged %v, %v", r.IDs, err)
	}
	if r, err := c.PurgeFinished(t.Context(), person, admin.Bulk{}); err != nil || len(r.IDs) != 1 {
		t.Errorf("purged %v of the history, %v", r.IDs, err)
	}
	if got := strings.Join(has("ada@"), " "); got != "unique_key" {
		t.Errorf("after the commands ada is in %s", got)
	}
	db.Do(t, `DELETE FROM outbox.unique_key k WHERE k.key LIKE '%ada@example.com'
		AND NOT EXISTS (SELECT FROM outbox.task t WHERE t.task_id = k.task_id)`)
	if got := has("ada@"); len(got) > 0 {
		t.Errorf("ada is left in %v", got)
	}
	if got := strings.Join(has("eve@"), " "); got != all {
		t.Errorf("eve is in %s, want %s", got, all)
	}
	db.Invariants(t)

	// The audit log says that there was a payload in the filter; an error that was looked for it repeats.
	if _, err := c.Purge(t.Context(), admin.Filter{Error: "no mailbox eve@example.com"}, admin.Bulk{}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(has("eve@"), " "); got != "audit done_task task unique_key" {
		t.Errorf("eve is in %s", got)
	}
}
