package outbox_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/lib/pq"

	"github.com/txoutbox/outbox"
)

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
		{"no such view", "42P01", "", []outbox.Option{outbox.Schema("public"), outbox.Unique("k")}},
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
			if sqlState(err) != c.state || !strings.HasPrefix(err.Error(), "outbox: enqueue ") {
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
