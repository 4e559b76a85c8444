package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/guard"
)

// sealed is a codec for tests: it turns the bits of each byte, after a random one.
type sealed struct {
	name string
	fail func() // in Encode
}

var errSealed = errors.New("no key")

func (c sealed) Name() string { return c.name }

func (c sealed) Encode(plain []byte) ([]byte, error) {
	if c.fail != nil {
		c.fail()
		return nil, errSealed
	}
	out := append([]byte{byte(rand.Uint32())}, plain...)
	for i := range plain {
		out[i+1] ^= 0xff
	}
	return out, nil
}

func (c sealed) Decode(stored []byte) ([]byte, error) {
	out := make([]byte, len(stored)-1)
	for i := range out {
		out[i] = stored[i+1] ^ 0xff
	}
	return out, nil
}

func TestCodecs(t *testing.T) {
	t.Parallel()
	first, second := sealed{name: "first"}, sealed{name: "second"}
	onEveryClient(t, []contract{
		{"store_one_string_beside_their_name_and_no_plain_text", func(t *testing.T, e *env) {
			name, tx := newType(), e.tx(t)
			typed := outbox.NewTaskType[welcome](name, outbox.Codec(first, second),
				outbox.Headers(map[string]string{"h": "1"}))
			payload := welcome{UserID: 7, Name: "in clear"}
			_, err := typed.Enqueue(t.Context(), tx, payload)
			must(err)
			keyed, plain := typed.New(payload, outbox.UniquePayload()), typed.New(payload, outbox.Headers(nil))
			putMany(t, tx, keyed, plain, outbox.TaskSpec{Type: name, Payload: payload})
			if tx.statements != 3 {
				t.Errorf("got %d statements, want 3", tx.statements)
			}
			for i, headers := range []string{`{"h": "1", "outbox-codec": "first"}`, `{"outbox-codec": "first"}`, "",
				`{"h": "1", "outbox-codec": "first"}`} {
				got := rows(t, tx, name)[i]
				var encoded []byte
				switch {
				case got.Headers.String != headers:
					t.Errorf("task %d: headers %s, want %s", i, got.Headers.String, headers)
				case headers == "":
				case json.Unmarshal([]byte(got.Payload), &encoded) != nil || strings.Contains(string(encoded), "clear"):
					t.Errorf("task %d: the payload is %s", i, got.Payload)
				default:
					if text, _ := first.Decode(encoded); string(text) != `{"user_id":7,"name":"in clear"}` {
						t.Errorf("task %d: it decodes to %s", i, text)
					}
				}
			}
			stored, err := typed.New(payload).Encode()
			if err != nil || !strings.HasPrefix(string(stored), `"`) {
				t.Errorf("Encode: %s, %v", stored, err)
			}
		}},
		{"keep_the_key_of_the_plain_payload", func(t *testing.T, e *env) {
			name, tx := newType(), e.tx(t)
			typed := outbox.NewTaskType[json.RawMessage](name, outbox.Codec(first), outbox.UniquePayload())
			put := func(payload string, opts ...outbox.Option) outbox.Enqueued {
				got, err := typed.Enqueue(t.Context(), tx, json.RawMessage(payload), opts...)
				must(err)
				return got
			}
			a := put(`{"b":1.50,"aa":2}`)
			if b := put(`{"aa":2, "b":15e-1}`); b.ID != a.ID || b.Outcome != outbox.OutcomeSkipped {
				t.Errorf("an equal payload: %+v, want task %d skipped", b, a.ID)
			}
			b := put(`{"aa":2, "b":1.5}`, outbox.Codec(second), outbox.OnConflict(outbox.ConflictReplace))
			if b.ID != a.ID || b.Outcome != outbox.OutcomeUpdated {
				t.Errorf("a replacement: %+v, want task %d updated", b, a.ID)
			}
			if got := one(t, tx, name); got.Headers.String != `{"outbox-codec": "second"}` || got.Payload[0] != '"' {
				t.Errorf("replaced: %s, %s", got.Headers.String, got.Payload)
			}
			before, err := outbox.Enqueue(t.Context(), tx, name, json.RawMessage(`{"aa":2, "b":1.5}`), outbox.UniquePayload(),
				outbox.OnConflict(outbox.ConflictReplace))
			must(err)
			if got := one(t, tx, name); before.ID != a.ID || got.Headers.Valid || got.Payload != `{"b": 1.5, "aa": 2}` {
				t.Errorf("replaced by a plain one: %+v, %+v", before, got)
			}
		}},
		{"fail_without_the_payload_and_before_any_SQL", func(t *testing.T, e *env) {
			name, tx := newType(), e.tx(t)
			large := json.RawMessage(`"` + strings.Repeat("x", 13<<20) + `"`)
			for about, c := range map[string]struct {
				codec   outbox.PayloadCodec
				payload any
				opts    []outbox.Option
				want    []error
				text    string
			}{
				"an error": {codec: sealed{"bad", func() {}}, want: []error{outbox.ErrInvalidPayload, errSealed},
					text: `the codec "bad" does not encode it: no key`},
				"a panic": {codec: sealed{"bad", func() { panic("gone") }}, want: []error{outbox.ErrInvalidPayload},
					text: `the codec "bad" does not encode it: panic: gone (in `},
				"Goexit":  {codec: sealed{"bad", runtime.Goexit}, want: []error{outbox.ErrInvalidPayload, guard.ErrGoexit}},
				"a limit": {codec: first, opts: []outbox.Option{outbox.MaxPayload(8)}, want: []error{outbox.ErrPayloadTooLarge}},
				"the limit of what is stored": {codec: first, payload: large, opts: []outbox.Option{outbox.MaxPayload(16 << 20)},
					want: []error{outbox.ErrPayloadTooLarge}, text: "its codec makes it 181"},
			} {
				if c.payload == nil {
					c.payload = "secret secret"
				}
				_, err := outbox.Enqueue(t.Context(), tx, name, c.payload, append(c.opts, outbox.Codec(c.codec))...)
				for _, want := range c.want {
					if !errors.Is(err, want) {
						t.Errorf("%s: got %.200v, want %v", about, err, want)
					}
				}
				if err == nil || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "secret") {
					t.Errorf("%s: got %.200v, want it to say %q", about, err, c.text)
				}
			}
			if tx.statements != 0 {
				t.Errorf("got %d statements, want 0", tx.statements)
			}
		}},
	})
}

// sameKey holds the key of a payload that a codec has encoded against the one that PostgreSQL makes.
func sameKey(t *testing.T, d database, document string) {
	t.Helper()
	tx := begin(t, d.db)
	defer tx.Rollback()
	limit := outbox.MaxPayload(1 << 20)
	plain := outbox.TaskSpec{Type: "PLAIN", Payload: json.RawMessage(document),
		Options: []outbox.Option{limit, outbox.UniquePayload()}}
	if _, err := outbox.EnqueueMany(t.Context(), tx, []outbox.TaskSpec{plain}); err != nil {
		return // refused
	}
	put(t, tx, "CODED", json.RawMessage(document), limit, outbox.UniquePayload(), outbox.Codec(sealed{name: "c"}))
	const keysSQL = `SELECT count(DISTINCT unique_key) || ' ' || min(left(unique_key, 9)) FROM outbox.task`
	if got := scan[string](t, tx, keysSQL); got != "1 $payload:" {
		t.Errorf("%.500q: %s keys, want 1", document, got)
	}
}

var keyDocuments = []string{
	`{"bb":1,"a":1,"a":2,"c":-0,"d":1e3}`, `[1.50,-0.0e-3,1E+2,9007199254740993]`, "0e1000000000", "1e4000", "-12e-3",
	`"\ud83d\ude00\u00fc\/\b\f\n\r\t\u0001\u001f\u007f"`, `{"":{"":[[[]],{}]}}`, "\"\u2028\ufeff\ufffd\U0010ffff\"",
	`{"é":1,"zz":2,"z":3,"aaa":4,"Z":5}`, `{"a":{"b":[1.10,"1.10",{"c":0.0}]},"a":{"b":[]}}`,
	` [ true , false , null ] `,
	`[1.005,1.0050,100,1e2,100.0,0.0010001,1.5e-10,15e10,1.23e1,12.3e-1,-0.5e1,5e-1,0.1e1]`, `"1.0"`, `["\"1.0",1.0]`,
	`1e131071`, `1e-16383`, `"\\u0041 \\ \" $payload"`, `{"\n":"\u0000x"}`, "0.10e1", "-0", "[0.0, -0.00]",
}

func TestAKeyOfAnEncodedPayloadIsPostgreSQLs(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for _, document := range keyDocuments {
		sameKey(t, d, document)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		sameKey(t, d, randomJSON(random, 3))
	}
}

// randomJSON is a document of few different parts, so that keys repeat and numbers are equal.
func randomJSON(r *rand.Rand, depth int) string {
	pick := func(all ...string) string { return all[r.IntN(len(all))] }
	kinds := 4
	if depth > 0 {
		kinds = 6
	}
	switch r.IntN(kinds) {
	case 0:
		return pick("true", "false", "null")
	case 1:
		return pick("", "-") + pick("0", "1", "10", "120", "1230000000000000000000") +
			pick("", ".0", ".10", ".001", ".0500") +
			pick("", "", "e1", "E+2", "e-3", "e20", "e-20")
	case 2, 3:
		return `"` + pick("", "a", "1.0", `\n`, `\u00e9`, "é", `\/`, `\\`, `\"`, `\u001f`, "🙂", `\ud83d\ude42`) +
			pick("", "b", ".10", " ") + `"`
	}
	var parts []string
	object := r.IntN(2) == 0
	for range r.IntN(4) {
		part := randomJSON(r, depth-1)
		if object {
			part = `"` + pick("", "a", "b", "aa", "é", "ab", `\t`, "B") + `"` + pick(":", " : ") + part
		}
		parts = append(parts, part)
	}
	if object {
		return "{" + strings.Join(parts, pick(",", ", ")) + "}"
	}
	return "[" + strings.Join(parts, pick(",", " ,")) + "]"
}

func FuzzKeyOfPayload(f *testing.F) {
	for _, s := range keyDocuments {
		f.Add(s)
	}
	d := newDatabase(f)
	f.Fuzz(func(t *testing.T, document string) { sameKey(t, d, document) })
}

// The key stays with the task, and with its dead letter after a redrive. SQL cannot make the key of a
// payload that is no string.
func TestAKeyOfAnEncodedPayloadStays(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	unique := []outbox.Option{outbox.UniquePayload(), outbox.Codec(sealed{name: "c"})}
	var ids []int64
	for i := range 3 {
		ids = append(ids, d.enqueue(t, "T", i, unique...).ID)
		exec(t, d.db, bury, ids[i])
	}
	exec(t, d.db, `UPDATE outbox.dead_task SET headers = '{"outbox-codec": "c"}'`)
	if n := scan[int](t, d.db, `SELECT count(*)
		FROM outbox.redrive(ARRAY(SELECT task_id FROM outbox.dead_task), false, '') WHERE written`); n != 3 {
		t.Errorf("%d are redriven, want 3", n)
	}
	for i := range 3 {
		if got := d.enqueue(t, "T", i, unique...); got.ID != ids[i] || got.Outcome != outbox.OutcomeSkipped {
			t.Errorf("after a redrive: got %+v, want task %d", got, ids[i])
		}
	}
	want(t, d.db, "3 3", `SELECT count(*) || ' ' || count(*) FILTER (WHERE headers ? 'outbox-codec') FROM outbox.task`)
	hash := strings.Repeat("0", 64)
	for payload, key := range map[string]string{`{}`: hash, `"x"`: hash[1:], `"y"`: hash + "0", `"z"`: "A" + hash[1:]} {
		const keyedSQL = `INSERT INTO outbox.task (task_type, payload, unique_key) VALUES ('S', $1::jsonb, $2)`
		_, err := d.db.Exec(keyedSQL, payload, "$payload:"+key)
		if err == nil || !strings.Contains(err.Error(), "must not begin with $payload") {
			t.Errorf("%s under %s: got %v", payload, key, err)
		}
	}
}

type tenantKey struct{}

func TestHooks(t *testing.T) {
	t.Parallel()
	errTenant := errors.New("no tenant")
	tenant := func(ctx context.Context, task *outbox.TaskSpec) error {
		name, ok := ctx.Value(tenantKey{}).(string)
		if !ok {
			return errTenant
		}
		task.Options = append(task.Options, outbox.AddHeaders(map[string]string{"tenant": name}))
		return nil
	}
	note := func(seen *[]string) outbox.Option {
		return outbox.BeforeEnqueue(func(_ context.Context, task *outbox.TaskSpec) error {
			*seen = append(*seen, fmt.Sprint(task.Type, task.Payload, len(task.Options)))
			return nil
		})
	}
	onEveryClient(t, []contract{
		{"run_in_their_order_on_a_copy", func(t *testing.T, e *env) {
			name, tx := newType(), e.tx(t)
			var seen []string
			typed := outbox.NewTaskType[int](name, note(&seen), outbox.BeforeEnqueue(tenant), outbox.Codec(sealed{name: "c"}))
			ctx := context.WithValue(t.Context(), tenantKey{}, "acme")
			_, err := typed.Enqueue(ctx, tx, 1, note(&seen))
			must(err)
			spare := make([]outbox.Option, 1, 9)
			spare[0] = outbox.BeforeEnqueue(tenant)
			specs := []outbox.TaskSpec{{Type: name, Payload: 2, Options: spare}, typed.New(3)}
			_, err = outbox.EnqueueMany(ctx, tx, specs)
			must(err)
			if got := fmt.Sprint(seen); got != fmt.Sprintf("[%[1]s1 5 %[1]s1 6 %[1]s3 4]", name) {
				t.Errorf("the hooks saw %s", got)
			}
			if spare[:2][1] != nil || len(specs[0].Options) != 1 {
				t.Error("a hook has changed the caller's options")
			}
			want(t, tx, "acme acme acme", `SELECT string_agg(headers ->> 'tenant', ' ') FROM outbox.task
				WHERE task_type = $1`, name)
			if tx.statements != 3 {
				t.Errorf("got %d statements, want 3", tx.statements)
			}
		}},
		{"refuse_a_task_before_any_SQL", func(t *testing.T, e *env) {
			name, tx := newType(), e.tx(t)
			hook := func(f func(*outbox.TaskSpec)) outbox.Option {
				return outbox.BeforeEnqueue(func(_ context.Context, task *outbox.TaskSpec) error { f(task); return nil })
			}
			for about, c := range map[string]struct {
				hook outbox.Option
				want error
				text string
			}{
				"an error": {outbox.BeforeEnqueue(tenant), errTenant, "BeforeEnqueue of " + name + ": no tenant"},
				"a panic":  {hook(func(*outbox.TaskSpec) { panic("oh") }), nil, "BeforeEnqueue of " + name + ": panic: oh (in "},
				"a type": {hook(func(s *outbox.TaskSpec) { s.Type = "OTHER" }), outbox.ErrInvalidOption,
					`changed the type to "OTHER"`},
				"a hook": {hook(func(s *outbox.TaskSpec) {
					s.Options = append(s.Options, outbox.BeforeEnqueue(tenant))
				}), outbox.ErrInvalidOption, "added a hook"},
				"no options": {hook(func(s *outbox.TaskSpec) { s.Options = nil }), outbox.ErrInvalidOption, "took options away"},
				"an option": {hook(func(s *outbox.TaskSpec) {
					s.Options = append(s.Options, outbox.Priority(1<<20))
				}), outbox.ErrInvalidOption, "Priority(1048576)"},
				"a payload": {hook(func(s *outbox.TaskSpec) { s.Payload = func() {} }), outbox.ErrInvalidPayload, "has no JSON"},
			} {
				_, alone := outbox.Enqueue(t.Context(), tx, name, 1, c.hook)
				_, among := outbox.EnqueueMany(t.Context(), tx, []outbox.TaskSpec{{Type: name},
					{Type: name, Options: []outbox.Option{c.hook}}})
				for _, err := range []error{alone, among} {
					if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
						t.Errorf("%s: got %v, want it to say %q", about, err, c.text)
					}
				}
				if among != nil && !strings.Contains(among.Error(), "task 1 of 2") {
					t.Errorf("%s: got %v, want it to say task 1 of 2", about, among)
				}
			}
			if tx.statements != 0 {
				t.Errorf("got %d statements, want 0", tx.statements)
			}
		}},
	})
	refused := outbox.TaskSpec{Type: "T", Options: []outbox.Option{outbox.BeforeEnqueue(tenant)}}
	if _, err := refused.Encode(); err != nil {
		t.Errorf("Encode runs no hook: %v", err)
	}
}
