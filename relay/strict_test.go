package relay_test

import (
	"context"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// letter is the payload {"email": …, "address": {"zip": …}} after a deploy that renamed its fields.
type letter struct {
	Email   string `json:"email_address" outbox:"required"`
	Address struct {
		ZIP string `json:"zipcode"`
	} `json:"address"`
}

// Tasks that were stored before a field got another name are not done without it: with Strict they
// fail, and wait for a deploy that mends it. Without it the log has the field, once.
func TestTasksOfARenamedFieldFailOrAreLogged(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	reg := handlers.New()
	kinds := []string{"tx", "batch", "leased", "complete"}
	for _, kind := range kinds {
		for name, opts := range map[string][]handlers.Option{"STRICT ": {handlers.Strict(), handlers.MaxAttempts(2),
			relaytest.RetrySoon()}, "LAX ": nil} {
			relaytest.Register(reg, kind, name+kind, 10, func(context.Context, outbox.Tx, []*outbox.Task[letter]) error {
				return nil
			}, opts...)
			db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT $1,
				'{"email": "hunter2", "address": {"zip": "hunter2"}}' FROM generate_series(1, 3)`, name+kind)
		}
	}
	log := ""
	for db.Int(t, `SELECT count(*) FROM outbox.task`) > 0 {
		db.Do(t, `UPDATE outbox.task SET run_at = now() WHERE state = 'scheduled'`)
		log += once(t, db, reg, relay.Config{})
	}
	count := func(text string, want int) {
		t.Helper()
		if got := strings.Count(log, text); got != want {
			t.Errorf("%d records with %s, want %d:\n%s", got, text, want, log)
		}
	}
	for _, kind := range kinds {
		db.wantText(t, `3 handlers: the payload does not decode: unknown field "email", unknown field "address.zip", required field "email_address" is missing`,
			`SELECT count(*) || ' ' || min(last_error) FROM outbox.dead_task WHERE task_type = $1 AND attempt = 2
				AND reason = 'attempts'`, "STRICT "+kind)
		for _, field := range []string{"email", "address.zip"} {
			count(`level=WARN msg="outbox: a payload has a field that its Go type does not have; its value is ignored" task_type="LAX `+kind+`" field=`+field+" ", 1)
		}
	}
	db.wantRows(t, 12, `outbox.dead_task`)
	count("hunter2", 0)
}
