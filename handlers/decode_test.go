package handlers_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/taskrun"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

const secret = "hunter2"

// gossip puts its payload into its error.
type gossip struct{}

func (*gossip) UnmarshalJSON(b []byte) error { return fmt.Errorf("cannot read %s", b) }

// typeGossip returns encoding/json's own error, of a place in its payload.
type typeGossip struct{}

func (*typeGossip) UnmarshalJSON(b []byte) error {
	var list []int
	return fmt.Errorf("%s: %w", b, json.Unmarshal(b, &list))
}

type color string

func (c *color) UnmarshalText(b []byte) error { return fmt.Errorf("no color %s", b) }

type account struct {
	Owner struct {
		Name   string
		Number int
	}
	Since   time.Time
	Color   color
	Gossip  gossip
	Type    typeGossip
	Raw     json.Number
	Limits  map[string]int
	Colors  map[color]int
	Quoted  int `json:",string"`
	Ignored any `json:"-"`
}

func TestErrorsOfDecodingDoNotRepeatThePayload(t *testing.T) {
	for payload, want := range map[string]string{
		`{"Owner": {"Number": "hunter2"}}`: `field "Owner.Number" does not fit int`,
		`{"Owner": "hunter2"}`:             `field "Owner" does not fit struct`,
		`"hunter2"`:                        `it does not fit handlers_test.account`,
		`{"Since": "hunter2"}`:             `field "Since" does not fit handlers_test.account`,
		`{"Owner": {}, "since": 2}`:        `field "since" does not fit handlers_test.account`,
		`{"Color": "hunter2"}`:             `field "Color" does not fit`,
		`{"Gossip": "hunter2"}`:            `field "Gossip" does not fit`,
		`{"Type": "hunter2"}`:              "does not decode",
		`{"Raw": "hunter2"}`:               `field "Raw" does not fit`,
		`{"Quoted": 2}`:                    `field "Quoted" does not fit`,
		`{"Limits": {"hunter2": "a"}}`:     `field "Limits" does not fit int`,
		`{"Limits": {"a": "hunter2"}}`:     `field "Limits" does not fit int`,
		`{"Colors": {"hunter2": 1}}`:       `field "Colors" does not fit`,
		`{"Owner": {"Number": 1hunter2}}`:  "does not decode",
		`hunter2`:                          "does not decode",
		``:                                 "does not decode",
	} {
		err := leased(t, payload, func(context.Context, *outbox.Task[account]) error {
			t.Errorf("%s: it was called", payload)
			return nil
		})
		if err == nil {
			t.Errorf("%s: want an error", payload)
			continue
		}
		wantText(t, err.Error(), "handlers: the payload", want)
		for e := err; e != nil; e = errors.Unwrap(e) {
			if strings.Contains(fmt.Sprintf("%v %+v %#v", e, e, e), secret) {
				t.Errorf("%s: the payload is in the error: %#v", payload, e)
			}
		}
	}
	// The same where P itself decodes.
	for _, payload := range []string{`"hunter2"`, `{"hunter2": 1}`} {
		err := leased(t, payload, func(context.Context, *outbox.Task[gossip]) error { return nil })
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("got %v, want an error without the payload", err)
		}
	}
	err := batch(t, nothingBatch, `{"To": "a"}`, `{"Count": "hunter2"}`)
	if err == nil || strings.Contains(fmt.Sprintf("%+v", err), secret) {
		t.Errorf("got %v, want an error without the payload", err)
	}
}

func TestNumbersKeepTheirDigits(t *testing.T) {
	const digits = "9007199254740993.000000000000000001"
	numbers := []any{}
	err := errors.Join(
		leased(t, digits, func(_ context.Context, task *outbox.Task[any]) error {
			numbers = append(numbers, task.Payload)
			return nil
		}),
		leased(t, `{"a": [`+digits+`]}`, func(_ context.Context, task *outbox.Task[map[string]any]) error {
			numbers = append(numbers, task.Payload["a"].([]any)[0])
			return nil
		}),
		leased(t, `{"V": `+digits+`}`, func(_ context.Context, task *outbox.Task[struct{ V any }]) error {
			numbers = append(numbers, task.Payload.V)
			return nil
		}),
		leased(t, digits, func(_ context.Context, task *outbox.Task[json.RawMessage]) error {
			numbers = append(numbers, json.Number(task.Payload))
			return nil
		}),
	)
	if want := slices.Repeat([]any{json.Number(digits)}, 4); err != nil || !slices.Equal(numbers, want) {
		t.Errorf("got %v, %v; want %v", numbers, err, want)
	}
}

func TestPayloadsThatFit(t *testing.T) {
	// A field that P no longer has is no error, so that the app can be older than the task.
	for payload, want := range map[string]*mail{`null`: nil, `{"To": "a", "New": {"b": 1}}`: {To: "a"}} {
		err := leased(t, payload, func(_ context.Context, task *outbox.Task[*mail]) error {
			if !reflect.DeepEqual(task.Payload, want) {
				t.Errorf("%s: got %v, want %v", payload, task.Payload, want)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A batch decodes its payloads one after the other with one decoder.
func TestEachPayloadOfABatchDecodesAsIfAlone(t *testing.T) {
	t.Run("struct", alike[mail])
	t.Run("any", alike[any])
	t.Run("raw", alike[json.RawMessage])
	t.Run("pointer", alike[*mail])
}

func asJSON(t *testing.T, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func alike[P any](t *testing.T) {
	payloads := []string{`{"To": "a", "Count": 1}`, `{"To": "b"}`, `{"Count": "x"}`, `{"To": "c"}`, `12`, `13`, `"text"`,
		` {"To": "d"} `, `{"To": "e"} {"To": "f"}`, `{"To": "g"}`, `{"To": `, `{"To": "h"}`, ``, `null`, `[1, 2.50]`,
		`1 2`, `true`, `{"To": "` + strings.Repeat("long ", 1000) + `"}`, `{"To": "i"}`}
	for range 200 {
		rand.Shuffle(len(payloads), func(i, j int) { payloads[i], payloads[j] = payloads[j], payloads[i] })
		got, want := map[int64]string{}, map[int64]string{}
		note := func(in map[int64]string) func(context.Context, *sql.Tx, []*outbox.Task[P]) error {
			return func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[P]) error {
				for _, task := range tasks {
					in[task.ID] = asJSON(t, task.Payload)
				}
				return nil
			}
		}
		alone, together := handlers.New(), handlers.New()
		relaytest.Register(alone, "tx", "SEND_MAIL", 1, note(want))
		relaytest.Register(together, "batch", "SEND_MAIL", len(payloads), note(got))
		var tasks []*outbox.Task[json.RawMessage]
		for i, p := range payloads {
			task := raw(int64(i+1), p)
			tasks = append(tasks, task)
			err := only(t, alone).Run(t.Context(), nil, handler.Claim{}, []*outbox.Task[json.RawMessage]{task})
			if err != nil {
				want[task.ID] = err.Error()
			}
		}
		var bad handlers.BatchResult
		errors.As(only(t, together).Run(t.Context(), nil, handler.Claim{}, tasks), &bad)
		for id, err := range bad {
			got[id] = err.Error()
		}
		if !maps.Equal(got, want) {
			t.Fatalf("%.20q: got %.100q, want %.100q", payloads, got, want)
		}
	}
}

func TestAHandlerGetsEveryFieldOfItsTask(t *testing.T) {
	t.Parallel()
	raw := outbox.Task[json.RawMessage]{ID: 1, DatabaseID: "d", Type: "TYPE", Payload: json.RawMessage(`"payload"`),
		Headers: map[string]string{"k": "v"}, Attempt: 3, MaxAttempts: 5, Priority: -1, OrderingKey: "o",
		RunAt: time.Unix(1, 0), CreatedAt: time.Unix(2, 0), Iterations: 6, LastError: "no luck",
		FailedAttempts: []outbox.FailedAttempt{{Attempt: 2, Error: "no luck"}}}
	want := outbox.Task[string]{ID: 1, DatabaseID: "d", Type: "TYPE", Payload: "payload",
		Headers: raw.Headers, Attempt: 3, MaxAttempts: 5, Priority: -1, OrderingKey: "o",
		RunAt: raw.RunAt, CreatedAt: raw.CreatedAt, Iterations: 6, LastError: "no luck",
		FailedAttempts: raw.FailedAttempts}
	lease := struct{ taskrun.Run }{}
	*taskrun.Of(&raw), *taskrun.Of(&want) = lease, lease
	for _, kind := range []string{"tx", "batch", "leased"} {
		reg, calls := handlers.New(), 0
		relaytest.Register(reg, kind, "TYPE", 5, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[string]) error {
			if calls++; !reflect.DeepEqual(*tasks[0], want) {
				t.Errorf("%s: got %+v, want %+v", kind, *tasks[0], want)
			}
			return nil
		})
		err := only(t, reg).Run(t.Context(), new(sql.Tx), handler.Claim{}, []*outbox.Task[json.RawMessage]{&raw})
		if err != nil || calls != 1 {
			t.Errorf("%s: %d calls, %v", kind, calls, err)
		}
	}
}

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
