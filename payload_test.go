package outbox_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
)

type refusedPayload struct {
	about   string
	payload any
	opts    []outbox.Option
	want    error
	text    string
}

var errMarshaler = errors.New("cannot write secret")

type failing struct{}

func (failing) MarshalJSON() ([]byte, error) { return nil, errMarshaler }

// literal is its own JSON.
type literal string

func (l literal) MarshalJSON() ([]byte, error) { return []byte(l), nil }

type cycle struct{ Next *cycle }

func refusedPayloads() (all []refusedPayload) {
	for text, documents := range map[string][]string{
		"not JSON near byte 1": {"secret", "+1", ".5", ",", "}", "\x00", "'secret'", "NaN", "Infinity"},
		"not JSON near byte 3": {"[ }", "-01", "1 2", "{}{}"},
		"not JSON near byte": {"", "tru", " \n", "[1,]", "[1,", `{"a":}`, "truex", "{", "{1:2}",
			`{"a":1,}`, `{"a":1,secret:1}`, `{"a" 1}`, "[1", "[1}", `{"a":1]`, "-", "1.", "1e", "1e+", `"`, `"secret`,
			`"\"`, "\"\x00\"", "\"a\nb\"", `"\x41"`, `"\u00"`, `"\u12g4"`, `"\ud83d\u"`, `"\u`, `"\`},
		"out of PostgreSQL's range": {"1e131072", "-1e131072", "0.01e131074", "1e-16384", "0.1e-16383",
			"0e-16384", "1e1000000010", "1e-1000000010", "0e99999999999999999999999999", "1e-99999999999999999999",
			"1" + strings.Repeat("0", 131072), "0." + strings.Repeat("0", 16384)},
		"invalid UTF-8": {"\"\xff\"", "{\"secret\xff\":1}", "\"\xc0\x80\"", "\"\xed\xa0\x80\"",
			"\"\xf5\x80\x80\x80\"", "\"\xe2\x82\""},
		"invalid UTF-8 at byte 7":           {"\"secret\xff\""},
		`\u0000`:                            {`"\u0000"`, `"secret\u0000"`, `{"\u0000":1}`, `{"a":{"b":["\u0000"]}}`},
		`\u0000, a NUL, which jsonb cannot`: {`"\\\u0000"`},
		"half a surrogate pair": {`"\ud800"`, `"\uDBFF"`, `"\udc00"`, `"\uDFFF"`, `"\ud800\ud800"`,
			`"\ud800x\udc00"`, `"\ud800\u0041"`, `"\ud800\n"`, `"\udc00\ud800"`, `{"\ud800":1}`},
		"half a surrogate pair at byte 13": {`"\ud83d\ude00\ude00"`},
		"nesting deeper than 1000": {nested("[", "]", 1001), nested(`{"a":`, "}", 1001),
			nested(`[{"":`, "}]", 501)},
	} {
		for _, s := range documents {
			all = append(all, refusedPayload{about: fmt.Sprintf("%.60q", s), payload: json.RawMessage(s),
				want: outbox.ErrInvalidPayload, text: text})
		}
	}
	for _, c := range []struct {
		payload any
		text    string
	}{
		{json.RawMessage(nil), "not JSON near byte 0"},
		{json.RawMessage{}, "not JSON near byte 0"},
		{"secret\x00", `\u0000`},
		{map[string]int{"secret\x00": 1}, `\u0000`},
		{literal(`"\ud800"`), "half a surrogate pair at byte 1"},
		{literal("1e131072"), "out of PostgreSQL's range"},
		{literal("{secret"), "outbox_test.literal: the Marshaler of outbox_test.literal failed"},
		{failing{}, "outbox_test.failing: the Marshaler of outbox_test.failing failed"},
		{[]any{1, failing{}}, "[]interface {}: the Marshaler of outbox_test.failing failed"},
		{math.NaN(), "float64: a float64 has a value without JSON"},
		{map[string]any{"secret": math.Inf(1)}, "a float64 has a value without JSON"},
		{make(chan int), "chan int has no JSON"},
		{struct{ F func() }{}, "func() has no JSON"},
		{json.Number("secret"), "json.Number: encoding/json refuses it"},
		{looped(), "*outbox_test.cycle"},
		{nestedAny(1001), "nesting deeper than 1000"},
	} {
		all = append(all, refusedPayload{about: fmt.Sprintf("a %T", c.payload), payload: c.payload,
			want: outbox.ErrInvalidPayload, text: c.text})
	}
	for _, c := range []struct {
		payload any
		limit   int
		text    string
	}{
		{strings.Repeat("x", 256<<10-1), 0, "262145 bytes, at most 262144"},
		{json.RawMessage(strings.Repeat(" ", 256<<10) + "1"), 0, "262145 bytes"},
		{json.RawMessage("123"), 2, "3 bytes, at most 2"},
		{json.RawMessage("1e400"), 400, "401 bytes with its numbers written out, at most 400"},
		{json.RawMessage("-1e400"), 401, "402 bytes"},
		{json.RawMessage("1e-400"), 401, "402 bytes"},
		{json.RawMessage("-1.5e-3"), 6, "7 bytes"},
		{json.RawMessage("0e-16383"), 16384, "16385 bytes"},
		{json.RawMessage(`{"a":[1e3,{"b":1e3}]}`), 22, "23 bytes"},
		{[]literal{"1e131071", "1e131071"}, 0, "262147 bytes"},
		{json.RawMessage("[" + strings.Repeat("1e131071,", 1<<16) + "1]"), 16 << 20, "8590000131 bytes"},
	} {
		all = append(all, refusedPayload{about: "a payload of " + c.text, payload: c.payload,
			opts: []outbox.Option{outbox.MaxPayload(c.limit)}, want: outbox.ErrPayloadTooLarge, text: c.text})
	}
	return all
}

func nested(open, end string, n int) string {
	return strings.Repeat(open, n) + "1" + strings.Repeat(end, n)
}

func nestedAny(n int) any {
	var v any
	for range n {
		v = []any{v}
	}
	return v
}

func looped() *cycle {
	c := &cycle{}
	c.Next = c
	return c
}

func TestPayloads(t *testing.T) {
	t.Parallel()
	onEveryClient(t, []contract{
		{"are_stored_as_the_value_that_jsonb_makes_of_them", func(t *testing.T, e *env) {
			tx := e.tx(t)
			for _, c := range []struct {
				payload any
				want    string
			}{
				{nil, `null`},
				{json.RawMessage(`{"bb":1,"a":1,"a":2,"c":-0,"d":1e3}`), `{"a": 2, "c": 0, "d": 1000, "bb": 1}`},
				{json.RawMessage(" \t\r\n[ 1.50 , 1E+2,-1.0e-1 , 9007199254740993 ] \n"),
					`[1.50, 100, -0.10, 9007199254740993]`},
				{json.RawMessage(`"\u0001\b\f\n\r\t\"\\\/\u00fc\uD83D\ude00\uFFFF\uffff"`),
					"\"\\u0001\\b\\f\\n\\r\\t\\\"\\\\/ü😀\uffff\uffff\""},
				{json.RawMessage(`"\\u0000 \\ud800"`), `"\\u0000 \\ud800"`}, // escaped backslashes, no escapes
				{json.RawMessage(`{"":{},"\u0061":[[],{}]}`), `{"": {}, "a": [[], {}]}`},
				{json.RawMessage("0e1000000000"), `0`},
				{"<&>\u2028\u2029\x7f", "\"<&>\u2028\u2029\x7f\""},
				{"not \xff UTF-8", `"not � UTF-8"`}, // as encoding/json writes it
				{[]byte("\x00\xff"), `"AP8="`},
				{literal(` [1 , 2] `), `[1, 2]`},
				{uint64(math.MaxUint64), `18446744073709551615`},
				{math.MaxFloat64, "17976931348623157" + strings.Repeat("0", 292)},
				{math.SmallestNonzeroFloat64, "0." + strings.Repeat("0", 323) + "5"},
				{welcome{UserID: -1}, `{"user_id": -1}`},
				{json.Number("1.10"), `1.10`},
			} {
				name := newType()
				put(t, tx.Querier, name, c.payload)
				if got := one(t, tx, name).Payload; got != c.want {
					t.Errorf("%v: got %s, want %s", c.payload, got, c.want)
				}
			}
		}},
		{"are_taken_up_to_each_limit", func(t *testing.T, e *env) {
			tx := e.tx(t)
			for _, c := range []struct {
				about   string
				payload any
				limit   int
				size    int // when read back
			}{
				{"the default size", strings.Repeat("x", 256<<10-2), 0, 256 << 10},
				{"a size of its own", json.RawMessage("[1e2]"), 5, 5},
				{"what HTML would escape", "<&>", 5, 5},
				{"the greatest number", json.RawMessage("-1e131071"), 131073, 131073},
				{"the same, shifted", json.RawMessage("0.001e131074"), 131072, 131072},
				{"the longest fraction", json.RawMessage("-1e-16383"), 16386, 16386},
				{"the longest zero", json.RawMessage("-0e-16383"), 16385, 16385},
				{"the longest number", json.RawMessage(strings.Repeat("9", 131072) + "." + strings.Repeat("9", 16383)),
					0, 131072 + 1 + 16383},
				{"a long number that is short", json.RawMessage("0." + strings.Repeat("0", 20000) + "1e20001"), 0, 1},
				{"a thousand arrays", json.RawMessage(nested("[", "]", 1000)), 0, 2001},
				{"a thousand objects", json.RawMessage(nested(`{"":`, "}", 1000)), 0, 6001},
				{"a thousand Go slices", nestedAny(1000), 0, 2004},
			} {
				name := newType()
				put(t, tx.Querier, name, c.payload, outbox.MaxPayload(c.limit))
				if got := one(t, tx, name).Payload; len(got) != c.size {
					t.Errorf("%s: got %d bytes, want %d", c.about, len(got), c.size)
				}
			}
		}},
	})
}

func TestErrorsOfTheServerShowNoPayload(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	exec(t, d.db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN RAISE 'no' USING ERRCODE = 'P0042'; END $$`)
	exec(t, d.db, `CREATE TRIGGER refuse BEFORE INSERT ON outbox.task
		FOR EACH ROW WHEN (NEW.priority = 7) EXECUTE FUNCTION refuse()`)
	for _, c := range []struct {
		name, state string
		before      string
		opts        []outbox.Option
	}{
		{"no such schema", "3F000", "", []outbox.Option{outbox.Schema("nowhere")}},
		{"no such table", "42P01", "", []outbox.Option{outbox.Schema("public"), outbox.Priority(1)}},
		{"no such function", "42883", "", []outbox.Option{outbox.Schema("public"), outbox.Unique("k")}},
		{"an aborted transaction", "25P02", "SAVEPOINT s; DO $$ BEGIN RAISE 'x'; END $$", nil},
		{"a refused row", "P0042", "", []outbox.Option{outbox.Priority(7)}},
		{"read only", "25006", "SET TRANSACTION READ ONLY", nil},
	} {
		for _, driver := range []string{"postgres", "pgx"} {
			tx := begin(t, open(t, driver, d.url))
			if c.before != "" {
				_, _ = tx.Exec(c.before)
			}
			_, err := outbox.Enqueue(t.Context(), tx, "T", "a secret", c.opts...)
			if pgerr.Code(err) != c.state || !strings.HasPrefix(err.Error(), "outbox: enqueue ") {
				t.Errorf("%s: got %v, want SQLSTATE %s, wrapped", c.name, err, c.state)
				continue
			}
			shown := err.Error()
			var e *pq.Error
			if errors.As(err, &e) {
				shown += e.Detail + e.Hint + e.Where
			}
			if strings.Contains(shown, "secret") {
				t.Errorf("%s: the error shows the payload: %s", c.name, shown)
			}
			end(t, tx.Rollback)
		}
	}
}

func TestOthersSeeNoPayloadInPgStatActivity(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for _, driver := range []string{"postgres", "pgx"} {
		for _, opts := range [][]outbox.Option{nil, {outbox.Priority(1)}} {
			tx := begin(t, open(t, driver, d.url))
			put(t, tx, "T", "a secret", opts...)
			seen := scan[string](t, d.db, `SELECT string_agg(query, '; ') FROM pg_stat_activity
				WHERE datname = current_database() AND state = 'idle in transaction'`)
			if !strings.Contains(seen, "outbox: enqueue") || strings.Contains(seen, "secret") {
				t.Errorf("%s with %d options: others see %q", driver, len(opts), seen)
			}
			end(t, tx.Rollback)
		}
	}
}

// pgx keeps each text that it was given, so there is one for all tasks.
func TestPgxPreparesOneStatementForAllEnqueues(t *testing.T) {
	t.Parallel()
	tx := begin(t, direct(t, "pgx", newDatabase(t).url))
	for i := range 10 {
		put(t, tx, newType(), i)
	}
	n := scan[int](t, tx, `SELECT count(*) FROM pg_prepared_statements
		WHERE statement LIKE '%enqueue_task(%' AND statement NOT LIKE '%pg_prepared%'`)
	if n != 1 {
		t.Errorf("%d statements are prepared, want 1", n)
	}
}

// arrived checks that a task has the document that it was enqueued with, as jsonb writes it (F15).
func arrived(t testing.TB, tx *sql.Tx, task outbox.Enqueued, document string) {
	t.Helper()
	var same bool
	err := tx.QueryRow(`SELECT payload::text = $2::jsonb::text FROM outbox.task WHERE task_id = $1`, task.ID,
		document).Scan(&same)
	if err != nil || !same {
		t.Fatalf("%q: it arrived as it was: %v, %v", document, same, err)
	}
}

// checked holds one document against PostgreSQL: what Enqueue refuses PostgreSQL refuses as well
// (beyond the limits of size and nesting), what it takes PostgreSQL takes, at no more than the size
// allowed, and the transaction is usable in both cases (F22, F23).
func checked(t testing.TB, tx *sql.Tx, document string) {
	t.Helper()
	const limit = 4 << 10
	run := func(statement string) {
		if _, err := tx.Exec(statement); err != nil {
			t.Fatalf("%q: %s: %v", document, statement, err)
		}
	}
	run("SAVEPOINT document")
	var size int
	castErr := tx.QueryRow(`SELECT length($1::jsonb::text)`, document).Scan(&size)
	run("ROLLBACK TO document; RELEASE document")

	got, err := outbox.Enqueue(t.Context(), tx, "T", json.RawMessage(document), outbox.MaxPayload(limit))
	if _, aborted := tx.Exec("SELECT 1"); aborted != nil {
		t.Fatalf("%q: got %v, after which the transaction says %v", document, err, aborted)
	}
	switch {
	case err == nil && castErr != nil:
		t.Errorf("%q: enqueued, though PostgreSQL says %v", document, castErr)
	case err == nil:
		arrived(t, tx, got, document)
		if most := limit + strings.Count(document, ",") + strings.Count(document, ":"); size > most {
			t.Errorf("%q: read back %d bytes, want at most %d", document, size, most)
		}
	case errors.Is(err, outbox.ErrPayloadTooLarge):
		if len(document) <= limit && !strings.ContainsAny(document, "eE") {
			t.Errorf("%q: got %v, with no number that grows", document, err)
		}
	case !errors.Is(err, outbox.ErrInvalidPayload):
		t.Errorf("%q: got %v, want ErrInvalidPayload", document, err)
	case castErr == nil && !strings.Contains(err.Error(), "nesting deeper"):
		t.Errorf("%q: got %v, though PostgreSQL takes it", document, err)
	}
}

func FuzzPayload(f *testing.F) {
	for _, c := range refusedPayloads() {
		if raw, ok := c.payload.(json.RawMessage); ok && len(raw) < 8<<10 {
			f.Add([]byte(raw))
		}
	}
	for _, s := range []string{
		`{"bb":1,"a":1,"a":2,"c":-0,"d":1e3}`, `[1.50,-0.0e-3,1E+2,9007199254740993]`, "0e1000000000", "0e1073741822",
		"0e1073741824", "1e4000",
		`"\ud83d\ude00\u00fc\/\b"`, `{"":{"":[[[]]]}}`, "\"\u2028\ufeff\ufffd\U0010ffff\"", nested("[", "]", 1000),
		" \t\r\n true \n",
	} {
		f.Add([]byte(s))
	}
	d := newDatabase(f)
	f.Fuzz(func(t *testing.T, document []byte) {
		tx := begin(t, d.db)
		checked(t, tx, string(document))
	})
}

// FuzzText: whatever the texts of a task are, Enqueue refuses them before any SQL, or PostgreSQL
// takes them and gives them back as they were; the caller's transaction is usable in both cases
// (F22, I7).
func FuzzText(f *testing.F) {
	for _, s := range []string{
		"", "T", "a\x00b", "\xff", "ü\u2028\ufeff", `'`, `\`, `\'`, `E'\''`, "$1", `$2::text`, `?`, `:name`, `::jsonb`,
		"$q$", "$outbox$", "$payload", "{}", `"`,
		"a\nb", "\r", "\x7f", "\u0085", "\u00a0x", `%s %d %%`, `--`, `/*`, `;`, `'; DROP TABLE canary; --`,
		`$$; DROP TABLE canary; --`, "𝄞", `U&'\0041'`,
		strings.Repeat("k", 128), strings.Repeat("k", 129), strings.Repeat("k", 256), strings.Repeat("ü", 129),
		"\ud7ff\U0010ffff", "NULL", "\\u0000", " ",
	} {
		f.Add(s, s, s, s, s)
		f.Add("T", "k", s, "h", "v")
		f.Add("T", s, "", s, "v")
	}
	d := newDatabase(f)
	exec(f, d.db, `CREATE TABLE canary ()`)
	pools := map[string]*sql.DB{
		"postgres": d.db, "pgx": open(f, "pgx", d.url),
		"binary_parameters":  open(f, "postgres", withParameter(f, d.url, "binary_parameters", "yes")),
		"strings as of yore": open(f, "postgres", withParameter(f, d.url, "standard_conforming_strings", "off")),
	}
	f.Fuzz(func(t *testing.T, taskType, uniqueKey, orderingKey, header, value string) {
		headers := map[string]string{header: value}
		opts := []outbox.Option{outbox.Headers(headers)}
		if uniqueKey != "" {
			opts = append(opts, outbox.Unique(uniqueKey))
		}
		if orderingKey != "" {
			opts = append(opts, outbox.OrderedBy(orderingKey))
		}
		for driver, pool := range pools {
			tx := begin(t, pool)
			got, err := outbox.Enqueue(t.Context(), tx, taskType, headers, opts...)
			many, manyErr := outbox.EnqueueMany(t.Context(), tx,
				[]outbox.TaskSpec{{Type: taskType, Payload: headers, Options: opts[:1]}, {Type: "OTHER", Payload: 1}})
			if err == nil && manyErr != nil || err != nil && !errors.Is(err, outbox.ErrInvalidType) &&
				!errors.Is(err, outbox.ErrInvalidOption) {
				t.Fatalf("%s: Enqueue: %v, EnqueueMany: %v", driver, err, manyErr)
			}
			exec(t, tx, "SELECT FROM canary")
			if err != nil {
				_ = tx.Rollback()
				continue
			}
			for i, id := range []int64{got.ID, many[0].ID} {
				var as, unique, ordering, text, payload string
				must(tx.QueryRow(`SELECT task_type, COALESCE(unique_key, ''), COALESCE(ordering_key, ''), headers::text, payload::text
					FROM outbox.task WHERE task_id = $1`, id).Scan(&as, &unique, &ordering, &text, &payload))
				var back map[string]string
				if err := json.Unmarshal([]byte(text), &back); err != nil || back[header] != value || len(back) != 1 ||
					text != payload || as != taskType || i == 0 && (unique != uniqueKey || ordering != orderingKey) {
					t.Fatalf("%s: got %q, %q, %q, %q, %q (%v), want %q, %q, %q, %q", driver, as, unique, ordering, text,
						payload, err, taskType, uniqueKey, orderingKey, headers)
				}
			}
			_ = tx.Rollback() // the next one may have the same key
		}
	})
}
