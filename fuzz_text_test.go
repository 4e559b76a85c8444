package outbox_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
)

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
				[]outbox.NewTask{{Type: taskType, Payload: headers, Options: opts[:1]}, {Type: "OTHER", Payload: 1}})
			if err == nil && manyErr != nil || err != nil && !errors.Is(err, outbox.ErrInvalidType) &&
				!errors.Is(err, outbox.ErrInvalidOption) {
				t.Fatalf("%s: Enqueue: %v, EnqueueMany: %v", driver, err, manyErr)
			}
			exec(t, tx, "SELECT FROM canary")
			if err != nil {
				_ = tx.Rollback()
				continue
			}
			for i, id := range []int64{got.TaskID, many[0].TaskID} {
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
