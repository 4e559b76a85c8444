package outbox_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/lib/pq"

	"github.com/txoutbox/outbox"
)

// nasty are texts that mean something to a reader of SQL.
var nasty = []string{
	`'`, `\`, `\'`, `E'\''`, `$1`, `$2::text`, `?`, `??`, `:name`, `::jsonb`, `%s %d %%`, `"`, `--`, `/*`, `;`,
	`'; DROP TABLE canary; --`, `$$; DROP TABLE canary; --`, "ä", "𝄞", `\u0041`, `U&'\0041'`, "\u2028", "\u00a0x",
}

func TestTextsArriveAsTheyAre(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	exec(t, d.db, `CREATE TABLE canary ()`)
	off := withParameter(t, d.url, "standard_conforming_strings", "off")
	for _, address := range []string{d.url, off, withParameter(t, d.url, "binary_parameters", "yes")} {
		tx := begin(t, open(t, "postgres", address))
		for _, text := range nasty {
			payload, err := json.Marshal(map[string]string{text: text, "lines": "\n" + text + "\r\n\t"})
			if err != nil {
				t.Fatal(err)
			}
			taskType := text
			if strings.ContainsAny(text, "\u2028\u00a0") { // they do not print
				taskType = "T"
			}
			headers, err := json.Marshal(map[string]string{text: text})
			if err != nil {
				t.Fatal(err)
			}
			all := []outbox.Option{outbox.OrderedBy(text), outbox.Headers(map[string]string{text: text}), outbox.Priority(3)}
			for _, opts := range [][]outbox.Option{nil, all} {
				e := put(t, tx, taskType, json.RawMessage(payload), opts...)
				var arrived bool
				err = tx.QueryRow(`SELECT task_type = $2 AND payload = $3::jsonb
				       AND ($4 OR (ordering_key = $5 AND headers = $6::jsonb AND priority = 3))
				  FROM outbox.task WHERE task_id = $1`,
					e.TaskID, taskType, string(payload), opts == nil, text, string(headers)).Scan(&arrived)
				if err != nil || !arrived {
					t.Errorf("%s: %q with %d options: %v, %v", address, text, len(opts), arrived, err)
				}
			}
		}
		exec(t, tx, `SELECT FROM canary`)
	}
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
		{"an aborted transaction", "25P02", "SAVEPOINT s; DO $$ BEGIN RAISE 'x'; END $$", nil},
		{"a refused row", "P0042", "", []outbox.Option{outbox.Priority(7)}},
		{"read only", "25006", "SET TRANSACTION READ ONLY", nil},
	} {
		tx := begin(t, d.db)
		if c.before != "" {
			_, _ = tx.Exec(c.before)
		}
		_, err := outbox.Enqueue(t.Context(), tx, "T", "a secret", c.opts...)
		if sqlState(err) != c.state {
			t.Errorf("%s: got %v, want SQLSTATE %s", c.name, err, c.state)
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
	}
}

func TestOthersSeeNoPayloadInPgStatActivity(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for _, driver := range []string{"postgres", "pgx"} {
		for _, opts := range [][]outbox.Option{nil, {outbox.Priority(1)}} {
			tx := begin(t, open(t, driver, d.url))
			put(t, tx, "T", "a secret", opts...)
			var seen string
			err := d.db.QueryRow(`SELECT string_agg(query, '; ') FROM pg_stat_activity
				WHERE datname = current_database() AND state = 'idle in transaction'`).Scan(&seen)
			if err != nil || !strings.Contains(seen, "outbox: enqueue") || strings.Contains(seen, "secret") {
				t.Errorf("%s with %d options: others see %q, %v", driver, len(opts), seen, err)
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
	var n int
	err := tx.QueryRow(`SELECT count(*) FROM pg_prepared_statements
		WHERE statement LIKE '%enqueue_task(%' AND statement NOT LIKE '%pg_prepared%'`).Scan(&n)
	if err != nil || n != 1 {
		t.Errorf("%d statements are prepared, %v; want 1", n, err)
	}
}
