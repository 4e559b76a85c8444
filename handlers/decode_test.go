package handlers_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
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
		` {"To": "d"} `, `{"To": "e"} {"To": "f"}`,
		`{"To": "g"}`, `{"To": `, `{"To": "h"}`, ``, `null`, `[1, 2.50]`, `1 2`, `true`, "{\"To\": \"" +
			strings.Repeat("long ", 1000) + "\"}", `{"To": "i"}`}
	for range 200 {
		rand.Shuffle(len(payloads), func(i, j int) { payloads[i], payloads[j] = payloads[j], payloads[i] })
		want := map[int64]string{}
		var tasks []*outbox.Task[json.RawMessage]
		for i, p := range payloads {
			id := int64(i + 1)
			tasks = append(tasks, raw(id, p))
			if err := leased(t, p, func(_ context.Context, task *outbox.Task[P]) error {
				want[id] = asJSON(t, task.Payload)
				return nil
			}); err != nil {
				want[id] = err.Error()
			}
		}
		got := map[int64]string{}
		r := handlers.New()
		handlers.Batch(r, outbox.NewTaskType[P]("SEND_MAIL"), len(payloads),
			func(_ context.Context, _ outbox.Tx, tasks []*outbox.Task[P]) error {
				for _, task := range tasks {
					got[task.ID] = asJSON(t, task.Payload)
				}
				return nil
			})
		var bad handlers.BatchError
		if err := only(t, r).Run(t.Context(), new(sql.Tx), handler.Claim{}, tasks); err != nil && !errors.As(err, &bad) {
			t.Fatal(err)
		}
		for id, err := range bad {
			got[id] = err.Error()
		}
		for i, p := range payloads {
			if id := int64(i + 1); got[id] != want[id] {
				t.Fatalf("%.20q: got %.100s, want %.100s", p, got[id], want[id])
			}
		}
	}
}

// A field of the task that the copy forgot would be zero in each handler.
func TestAHandlerGetsEveryFieldOfItsTask(t *testing.T) {
	t.Parallel()
	raw := outbox.Task[json.RawMessage]{ID: 1, DatabaseID: "d", Type: "TYPE", Payload: json.RawMessage(`"payload"`),
		Headers: map[string]string{"k": "v"},
		Attempt: 3, MaxAttempts: 5, Priority: -1, OrderingKey: "o", RunAt: time.Unix(1, 0), CreatedAt: time.Unix(2,
			0), Iterations: 6, LastError: "no luck",
		Errors: []outbox.AttemptError{{Attempt: 2, Error: "no luck"}}, Lease: noLease{}}
	want := outbox.Task[string]{ID: 1, DatabaseID: "d", Type: "TYPE", Payload: "payload", Headers: raw.Headers,
		Attempt: 3, MaxAttempts: 5, Priority: -1, OrderingKey: "o", RunAt: raw.RunAt, CreatedAt: raw.CreatedAt, Iterations: 6, LastError: "no luck",
		Errors: raw.Errors, Lease: noLease{}}
	for i, fields := 0, reflect.ValueOf(want); i < fields.NumField(); i++ {
		if fields.Field(i).IsZero() {
			t.Fatalf("this test does not fill %s", fields.Type().Field(i).Name)
		}
	}
	calls, tx := 0, new(sql.Tx)
	check := func(got *outbox.Task[string]) {
		if calls++; !reflect.DeepEqual(*got, want) {
			t.Errorf("got %+v, want %+v", *got, want)
		}
	}
	reg := handlers.New()
	handlers.Tx(reg, outbox.NewTaskType[string]("TX"),
		func(_ context.Context, got *sql.Tx, task *outbox.Task[string]) error {
			if check(task); got != tx {
				t.Error("it is another transaction")
			}
			return nil
		})
	handlers.Batch(reg, outbox.NewTaskType[string]("BATCH"), 5,
		func(_ context.Context, _ outbox.Tx, tasks []*outbox.Task[string]) error {
			check(tasks[0])
			return nil
		})
	handlers.Leased(reg, outbox.NewTaskType[string]("LEASED"), func(_ context.Context, task *outbox.Task[string]) error {
		check(task)
		return nil
	})
	for _, h := range reg.Handlers() {
		if err := h.Run(t.Context(), tx, handler.Claim{}, []*outbox.Task[json.RawMessage]{&raw}); err != nil {
			t.Error(err)
		}
	}
	if calls != 3 {
		t.Errorf("got %d calls, want 3", calls)
	}
}

type noLease struct{}

func (noLease) Extend(context.Context, time.Duration) error                   { return nil }
func (noLease) Complete(ctx context.Context, fn func(tx *sql.Tx) error) error { return nil }
