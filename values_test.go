package outbox_test

import (
	"database/sql"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/needs"
)

// nasty are texts that mean something to a reader of SQL.
var nasty = []string{
	`'`, `''`, `it's`, `\`, `\\`, `\'`, `E'\''`, `$1`, `$2::text`, `?`, `??`, `:name`, `::jsonb`, `%s %d %%`, `"`, `--`, `/*`, `*/`, `;`, `'; DROP TABLE canary; --`,
	`$`, `$$`, `$$; DROP TABLE canary; --`, `$tas`, `$task`, `$task$`, `$task$; DROP TABLE canary; --`, `$task$$task$`, `x$task`, `$$task$$`, `$ta$task$`, `é$`, `é$task$`,
	`$é$`, `$é`, "ä", "€", "𝄞", "🙂'\\🙂", `\u0041`, `U&'\0041'`, `q'[x]'`, "\u2028", "\u00a0x",
}

// whole is what is stored of a task, but its id and its times.
const whole = `SELECT to_jsonb(t) - 'task_id' - 'run_at' - 'created_at' FROM outbox.task t WHERE task_id = $1`

// storedBothWays enqueues the task as literals and as arguments, and returns what became of each.
func storedBothWays(t testing.TB, tx *sql.Tx, taskType string, payload json.RawMessage, opts ...outbox.Option) (as [2]string, errs [2]error) {
	t.Helper()
	for i, q := range []outbox.Querier{tx, asArguments{tx}} {
		e, err := outbox.Enqueue(t.Context(), q, taskType, payload, opts...)
		if errs[i] = err; err != nil {
			continue
		}
		if err := tx.QueryRowContext(t.Context(), whole, e.TaskID).Scan(&as[i]); err != nil {
			t.Fatal(err)
		}
	}
	return as, errs
}

func TestTextsArriveAsTheyAreBothWays(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	exec(t, d.db, `CREATE TABLE canary ()`)
	sqlxTx := func(tx *sql.Tx) outbox.Querier { return &sqlx.Tx{Tx: tx} }
	for _, address := range []string{d.url, withParameter(t, d.url, "standard_conforming_strings", "off"), withParameter(t, d.url, "binary_parameters", "yes")} {
		tx := begin(t, open(t, "postgres", address))
		for _, text := range nasty {
			payload, err := json.Marshal(map[string]string{text: text, "lines": "\n" + text + "\r\n\t"})
			if err != nil {
				t.Fatal(err)
			}
			opts := []outbox.Option{outbox.OrderedBy(text), outbox.Headers(map[string]string{text: text}), outbox.Priority(3)}
			for _, opts := range [][]outbox.Option{nil, opts} {
				taskType := "T"
				if !strings.ContainsAny(text, "\u2028\u00a0") { // they do not print
					taskType = text
				}
				as, errs := storedBothWays(t, tx, taskType, payload, opts...)
				if errs != [2]error{} || as[0] != as[1] {
					t.Errorf("%s: %q: got %s as literals and %s as arguments, %v", address, text, as[0], as[1], errs)
				}
				e, err := outbox.Enqueue(t.Context(), sqlxTx(tx), taskType, json.RawMessage(payload), opts...)
				var got struct{ taskType, payload string }
				if err == nil {
					err = tx.QueryRowContext(t.Context(), `SELECT task_type, (payload = $2::jsonb)::text FROM outbox.task WHERE task_id = $1`, e.TaskID, string(payload)).Scan(&got.taskType, &got.payload)
				}
				if err != nil || got.taskType != taskType || got.payload != "true" {
					t.Errorf("%s: %q: got the type %q, and the same payload: %s, %v", address, text, got.taskType, got.payload, err)
				}
			}
		}
		exec(t, tx, `SELECT FROM canary`)
	}
}

// lib/pq asks for UTF-8 when it connects and does not see that an app changes that. In some encodings the second byte of
// a character can be a backslash, which must not let a text out of its literal.
func TestNoEncodingOfTheSessionLetsATextOutOfItsLiteral(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	d := newDatabase(t)
	exec(t, d.db, `CREATE TABLE canary ()`)
	step := 9
	if os.Getenv("OUTBOX_TEST_LONG") != "" {
		step = 1
	}
	for _, encoding := range []string{"SJIS", "SHIFT_JIS_2004", "BIG5", "GBK", "UHC", "GB18030", "JOHAB", "LATIN1", "EUC_JP"} {
		db := open(t, "postgres", d.url)
		for last := 0; last < 64; last += step {
			for _, end := range []string{`\`, `\'`, `'`, `$`, `$tas`, `$task`, `$task$`} {
				tx := begin(t, db)
				exec(t, tx, `SET LOCAL backslash_quote = on; SET LOCAL client_encoding = '`+encoding+`'`)
				text := "\xc3" + string([]byte{0x80 + byte(last)}) + end + `,to_jsonb(1)); DROP TABLE canary; SELECT (1`
				_, err := outbox.Enqueue(t.Context(), tx, text, text)
				if err == nil {
					exec(t, tx, `SELECT FROM canary`)
				} else if sqlState(err) == "42601" {
					t.Errorf("%s: %q: got %v, want no error of syntax", encoding, text, err)
				}
				if err := tx.Rollback(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

func FuzzBothWays(f *testing.F) {
	for _, text := range nasty {
		f.Add("T", `"`+text+`"`, text)
		f.Add(text, `[1, "`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text)+`"]`, "k")
	}
	d := newDatabase(f)
	f.Fuzz(func(t *testing.T, taskType, payload, key string) {
		tx := begin(t, d.db)
		for _, opts := range [][]outbox.Option{nil, {outbox.OrderedBy(key), outbox.Headers(map[string]string{key: key})}} {
			as, errs := storedBothWays(t, tx, taskType, json.RawMessage(payload), opts...)
			if as[0] != as[1] || (errs[0] == nil) != (errs[1] == nil) {
				t.Errorf("got %s, %v as literals and %s, %v as arguments", as[0], errs[0], as[1], errs[1])
			}
			if errs[0] == nil {
				var same bool
				if err := tx.QueryRow(`SELECT $1::jsonb ->> 'task_type' = $2 AND $1::jsonb -> 'payload' = $3::jsonb`, as[0], taskType, payload).Scan(&same); err != nil || !same {
					t.Errorf("got %s, %v", as[0], err)
				}
			}
		}
	})
}
