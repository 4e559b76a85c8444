package outbox_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
)

// arrived checks that a task has the document that it was enqueued with, as jsonb writes it (F15).
func arrived(t testing.TB, tx *sql.Tx, task outbox.Enqueued, document string) {
	t.Helper()
	var same bool
	err := tx.QueryRow(`SELECT payload::text = $2::jsonb::text FROM outbox.task WHERE task_id = $1`, task.TaskID,
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
