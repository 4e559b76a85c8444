package handlers_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/relaytest"
)

func TestMain(m *testing.M) { relaytest.Main(m) }

type mail struct {
	To    string
	Count int
}

var sendMail = outbox.NewTaskType[mail]("SEND_MAIL")

// nothing is a handler of each kind.
func nothing(context.Context, *sql.Tx, *outbox.Task[mail]) error { return nil }

func nothingBatch(context.Context, outbox.Tx, []*outbox.Task[mail]) error { return nil }

func nothingLeased(context.Context, *outbox.Task[mail]) error { return nil }

func raw(id int64, payload string) *outbox.Task[json.RawMessage] {
	return &outbox.Task[json.RawMessage]{ID: id, Type: "SEND_MAIL", Payload: json.RawMessage(payload), Attempt: 1}
}

// only is the one handler of a registry.
func only(t *testing.T, r *handlers.Registry) *handler.Handler {
	t.Helper()
	all := r.Handlers()
	if len(all) != 1 {
		t.Fatalf("got %d handlers, want 1", len(all))
	}
	return all[0]
}

// leased calls a Leased handler, with options, on one task of that payload.
func leased[P any](t *testing.T, payload string, h func(context.Context, *outbox.Task[P]) error,
	opts ...handlers.Option) error {
	t.Helper()
	r := handlers.New()
	handlers.Leased(r, outbox.NewTaskType[P]("SEND_MAIL"), h, opts...)
	return only(t, r).Run(t.Context(), nil, handler.Claim{}, []*outbox.Task[json.RawMessage]{raw(1, payload)})
}

// batch calls a Batch handler on tasks 1, 2, … of those payloads.
func batch(t *testing.T, h func(context.Context, outbox.Tx, []*outbox.Task[mail]) error, payloads ...string) error {
	t.Helper()
	r := handlers.New()
	handlers.Batch(r, sendMail, 10, h)
	var tasks []*outbox.Task[json.RawMessage]
	for i, p := range payloads {
		tasks = append(tasks, raw(int64(i+1), p))
	}
	return only(t, r).Run(t.Context(), new(sql.Tx), handler.Claim{}, tasks)
}

// panics is the text of f's panic.
func panics(t *testing.T, f func()) (text string) {
	t.Helper()
	defer func() {
		p := recover()
		if p == nil {
			t.Error("want a panic")
		}
		text = fmt.Sprint(p)
	}()
	f()
	return ""
}

func wantText(t *testing.T, got string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(got, part) {
			t.Errorf("got %q, want %q in it", got, part)
		}
	}
}
