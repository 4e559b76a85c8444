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
