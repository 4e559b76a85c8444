package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// One mail of 1,000 cannot be sent: found, understood, redriven and gone, by the command alone.
func TestABrokenAddressIsFoundAndRedriven(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	type welcome struct {
		Email string `json:"email"`
	}
	var mended atomic.Bool
	var sent atomic.Int64
	db.relay(t, func(r *handlers.Registry) {
		handlers.Leased(r, outbox.NewTaskType[welcome]("SEND_WELCOME"), func(_ context.Context, task *outbox.Task[welcome]) error {
			if strings.HasSuffix(task.Payload.Email, "@broken.example") && !mended.Load() {
				return handlers.Dead(errors.New("550 no such mailbox"))
			}
			sent.Add(1)
			return nil
		})
	})
	db.exec(t, `INSERT INTO outbox.task (task_type, payload)
		SELECT 'SEND_WELCOME', jsonb_build_object('email', CASE n WHEN 617 THEN 'ada@broken.example' ELSE 'user' || n || '@example.com' END) FROM generate_series(1, 1000) n`)

	var stats struct {
		Types []typeStats `json:"types"`
	}
	eventually(t, "999 are done and one is dead", func() bool {
		db.json(t, &stats, "stats")
		return len(stats.Types) == 1 && stats.Types[0].Finished == 999 && stats.Types[0].Dead == 1
	})
	var dead struct {
		Letters []letter `json:"letters"`
	}
	db.json(t, &dead, "dead", "list", "-type", "SEND_WELCOME")
	if len(dead.Letters) != 1 || dead.Letters[0].Error != "dead: 550 no such mailbox" {
		t.Fatalf("got %+v", dead)
	}
	id := join([]int64{dead.Letters[0].TaskID})
	if shown := db.ok(t, "dead", "show", id); !strings.Contains(shown, "550 no such mailbox") || !strings.Contains(shown, "its handler gave it up") || strings.Contains(shown, "ada@broken.example") {
		t.Errorf("got\n%s", shown)
	}
	if shown := db.ok(t, "dead", "show", id, "-payload"); !strings.Contains(shown, `"ada@broken.example"`) {
		t.Errorf("got\n%s", shown)
	}
	mended.Store(true)
	db.ok(t, "dead", "redrive", id)
	eventually(t, "it is done", func() bool {
		db.json(t, &stats, "stats")
		return stats.Types[0].Finished == 1000 && stats.Types[0].Dead == 0
	})
	if r := db.run(t, "tasks", "show", id); r.code != exitNotFound || sent.Load() != 1000 {
		t.Errorf("%d were sent; the task: %+v", sent.Load(), r)
	}
	var list struct {
		Letters []json.RawMessage `json:"letters"`
	}
	if db.json(t, &list, "dead", "list"); list.Letters == nil || len(list.Letters) != 0 {
		t.Errorf("got %s", list.Letters)
	}
}
