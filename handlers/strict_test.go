package handlers_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

type welcome struct {
	Email   string `json:"email_address" outbox:"required"`
	Address *struct {
		ZIP string `json:"zip" outbox:"required"`
	}
}

// run calls a handler of each kind on payloads, and returns the error of each payload: a field of
// the payloads decides alone.
func runEach(t *testing.T, log *slog.Logger, kind string, defaults, opts []handlers.Option,
	payloads ...string) (called int, errs []error) {
	t.Helper()
	r := handlers.New(defaults...)
	relaytest.Register(r, kind, "WELCOME", 100, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[welcome]) error {
		called += len(tasks)
		return nil
	}, opts...)
	h := only(t, r)
	run := func(tasks ...*outbox.Task[json.RawMessage]) error {
		return h.Run(t.Context(), new(sql.Tx), handler.Claim{Log: log}, tasks)
	}
	var tasks []*outbox.Task[json.RawMessage]
	for i, p := range payloads {
		tasks = append(tasks, raw(int64(i+1), p))
	}
	if kind != "batch" {
		for _, task := range tasks {
			errs = append(errs, run(task))
		}
		return called, errs
	}
	var some handlers.BatchResult
	errors.As(run(tasks...), &some)
	for _, task := range tasks {
		errs = append(errs, some[task.ID])
	}
	return called, errs
}

var renamed = []string{
	`{"email_address": "a"}`,
	`{"email": "hunter2"}`,
	`{"email_address": "a", "Address": {"zipcode": "hunter2"}}`,
	`{"email_address": "a", "Address": {"zip": "1"}}`,
	`null`,
}

func TestStrictFailsAttemptsWhoseFieldsDoNotFit(t *testing.T) {
	wants := []string{"", `the payload does not decode: unknown field "email", required field "email_address" is missing`,
		`unknown field "Address.zipcode", required field "Address.zip" is missing`, "", `required field "email_address" is missing`}
	for _, kind := range []string{"tx", "batch", "leased"} {
		for name, opts := range map[string][2][]handlers.Option{"by type": {nil, {handlers.Strict()}},
			"by default": {{handlers.Strict()}, nil}} {
			log := &relaytest.Records{}
			called, errs := runEach(t, slog.New(slog.NewTextHandler(log, nil)), kind, opts[0], opts[1], renamed...)
			for i, err := range errs {
				got := fmt.Sprint(err)
				if (wants[i] == "") != (err == nil) || !strings.Contains(got, wants[i]) && err != nil ||
					strings.Contains(got, secret) {
					t.Errorf("%s, %s, %s: got %v, want %q", kind, name, renamed[i], err, wants[i])
				}
			}
			if called != 2 || log.String() != "" {
				t.Errorf("%s, %s: the handler had %d payloads, want 2; log %q", kind, name, called, log)
			}
		}
	}
}

func TestAnUnknownFieldIsLoggedOnce(t *testing.T) {
	for _, kind := range []string{"tx", "batch", "leased"} {
		log := &relaytest.Records{}
		payloads := append(renamed, renamed...)
		for i := range 40 {
			payloads = append(payloads, fmt.Sprintf(`{"x%d": "hunter2"}`, i))
		}
		called, errs := runEach(t, slog.New(slog.NewTextHandler(log, nil)), kind, nil, nil, payloads...)
		if err := errors.Join(errs...); err != nil || called != len(payloads) {
			t.Errorf("%s: %d payloads, %v", kind, called, err)
		}
		log.Want(t, 20, `level=WARN msg="outbox: a payload has a field that its Go type does not have; its value is ignored" task_type=WELCOME field=`)
		log.Want(t, 1, `field=email payload_type=handlers_test.welcome task_id=2`)
		log.Want(t, 1, `field=Address.zipcode payload_type=handlers_test.welcome task_id=3`)
		log.Want(t, 0, secret)
	}
}

func TestDefaultsOfARegistryComeBeforeTheOptions(t *testing.T) {
	r := handlers.New(handlers.MaxAttempts(3), handlers.Priority(5))
	handlers.Leased(r, sendMail, nothingLeased, handlers.Priority(7))
	if h := only(t, r); h.MaxAttempts != 3 || h.Priority != 7 {
		t.Errorf("got max attempts %d and priority %d, want 3 and 7", h.MaxAttempts, h.Priority)
	}
	wantText(t, panics(t, func() { handlers.Tx(handlers.New(nil), sendMail, nothing) }), "SEND_MAIL: an Option is nil")
	wantText(t, panics(t, func() {
		handlers.Leased(handlers.New(handlers.GroupCommit(2, 0)), sendMail, nothingLeased)
	}), "GroupCommit: a leased handler has none")
	type typo struct {
		A int `outbox:"requried"`
	}
	wantText(t, panics(t, func() {
		handlers.Leased(handlers.New(), outbox.NewTaskType[typo]("TYPO"), func(context.Context, *outbox.Task[typo]) error {
			return nil
		})
	}), "handlers: TYPO: field A of handlers_test.typo has the tag outbox:\"requried\"")
}
