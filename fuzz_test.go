package outbox_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/needs"
)

// documents generates JSON texts, with every freedom that the grammar leaves to a writer.
func documents() *rapid.Generator[string] {
	space := rapid.StringMatching(`[ \n\t\r]{0,2}`)
	number := rapid.StringMatching(`-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,12}|\.0{0,9}[0-9])?([eE][+-]?(0{0,3}[0-9]{1,2}|400))?`)
	text := rapid.StringMatching(`"([abü\x{1F600}]|\\["\\/bfnrt]|\\u00[1-9a-f][0-9A-F]|\\uD83d\\ude0[0-9]){0,12}"`)
	value := rapid.OneOf(number, text, rapid.SampledFrom([]string{"null", "true", "false"}))
	for range 4 {
		within := value
		element := rapid.Custom(func(t *rapid.T) string {
			return space.Draw(t, "before") + within.Draw(t, "value") + space.Draw(t, "after")
		})
		member := rapid.Custom(func(t *rapid.T) string {
			return space.Draw(t, "before") + text.Draw(t, "key") + space.Draw(t, "after") + ":" + element.Draw(t,
				"value")
		})
		array := rapid.Custom(func(t *rapid.T) string {
			return "[" + strings.Join(rapid.SliceOfN(element, 0, 4).Draw(t, "elements"), ",") + "]"
		})
		object := rapid.Custom(func(t *rapid.T) string {
			return "{" + strings.Join(rapid.SliceOfN(member, 0, 4).Draw(t, "members"), ",") + "}"
		})
		value = rapid.OneOf(within, array, object)
	}
	return value
}

// arrived checks that a task has the document that it was enqueued with, as jsonb writes it (F15).
func arrived(t rapid.TB, tx *sql.Tx, task outbox.Enqueued, document string) {
	t.Helper()
	var same bool
	err := tx.QueryRow(`SELECT payload::text = $2::jsonb::text FROM outbox.task WHERE task_id = $1`, task.TaskID,
		document).Scan(&same)
	if err != nil || !same {
		t.Fatalf("%q: it arrived as it was: %v, %v", document, same, err)
	}
}

func TestRandomPayloadsOfOneCallArriveAsTheyAre(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	d := newDatabase(t)
	rapid.Check(t, func(rt *rapid.T) {
		batch := rapid.SliceOfN(documents(), 50, 80).Draw(rt, "documents")
		tasks := make([]outbox.NewTask, len(batch))
		for i, document := range batch {
			tasks[i] = outbox.NewTask{Type: "T", Payload: json.RawMessage(document)}
		}
		tx, err := d.db.Begin()
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		got, err := outbox.EnqueueMany(t.Context(), tx, tasks)
		if err != nil {
			rt.Fatal(err)
		}
		for i, document := range batch {
			arrived(rt, tx, got[i], document)
		}
	})
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

// mutations are what turns a valid document into one that jsonb refuses, or not.
var mutations = []string{`\u0000`, "\x00", `\ud800`, `\udc00`, `\ud83d\ude00`, "\xff", "\xed\xa0\x80", "ü", "\\", `"`,
	"{", "[", "}", "]", ",", ":", "1", "0", "-", ".", "e", "e9999", "e131071", "e-16384", " ", "\n", "null", "\ufeff"}

func TestRandomlyDamagedPayloadsNeverBreakTheTransaction(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	d := newDatabase(t)
	tx := begin(t, d.db)
	rapid.Check(t, func(rt *rapid.T) {
		for range 20 {
			s := documents().Draw(rt, "document")
			for range rapid.IntRange(1, 3).Draw(rt, "faults") {
				at := rapid.IntRange(0, len(s)).Draw(rt, "at")
				until := min(len(s), at+rapid.IntRange(0, 2).Draw(rt, "cut"))
				s = s[:at] + rapid.SampledFrom(mutations).Draw(rt, "mutation") + s[until:]
			}
			checked(t, tx, s)
		}
	})
	end(t, tx.Commit)
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
