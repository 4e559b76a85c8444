package relay_test

import (
	"bytes"
	"context"
	"database/sql"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/relay"
)

// clientProgram is the path of a program of the server's clients. A test without it is skipped.
func clientProgram(t *testing.T, name string) string {
	t.Helper()
	path, err := pgtest.Server(t).Program(name)
	if err != nil {
		t.Skipf("%s is not beside the server's programs; install the package postgresql-client: %v", name, err)
	}
	return path
}

// restored dumps a database and restores it into a new cluster, whose ids of transactions are far behind.
func restored(t *testing.T, db *database, pgDump, psqlPath string) *database {
	t.Helper()
	dump := exec.CommandContext(t.Context(), pgDump, "--dbname", db.URL)
	psql := exec.CommandContext(t.Context(), psqlPath, "--no-psqlrc", "--quiet", "--single-transaction", "--set", "ON_ERROR_STOP=1")
	var said bytes.Buffer
	dump.Stderr, psql.Stderr = &said, &said
	url, _, err := pgtest.Local(t, nil).NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	script, err := dump.Output()
	if err == nil {
		psql.Args, psql.Stdin = append(psql.Args, "--dbname", url), bytes.NewReader(script)
		err = psql.Run()
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, &said)
	}
	return open(t, url)
}

// What ran at the dump runs in the copy, as an attempt more, and so does what lies around it.
func TestTasksThatRanAtADumpRunAfterItsRestore(t *testing.T) {
	t.Parallel()
	dump, psql := clientProgram(t, "pg_dump"), clientProgram(t, "psql")
	db := newDatabase(t)
	db.Do(t, `DO $$ BEGIN FOR i IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`)
	db.Do(t, `INSERT INTO outbox.task (task_type, priority, payload)
		SELECT CASE WHEN n % 10 = 1 THEN 'TX' ELSE 'BATCH' END, CASE n WHEN 11 THEN -1 ELSE 0 END, '{}' FROM generate_series(1, 21) n ORDER BY n`)
	dumped, reg := make(chan struct{}), handlers.New()
	handlers.Tx(reg, typeTx, func(context.Context, *sql.Tx, *outbox.Task[payload]) error { <-dumped; return nil })
	handlers.Batch(reg, typeBatch, 20, func(context.Context, outbox.Tx, []*outbox.Task[payload]) error { <-dumped; return nil })
	old := run(t, db, reg, relay.Config{Workers: 2})
	release := sync.OnceFunc(func() { close(dumped) })
	defer release()
	eventually(t, 20*time.Second, "a batch and one of the other tasks run", func() bool {
		return db.Text(t, `SELECT string_agg(cardinality(task_ids)::text, ' ') || ' ' || count(*) FROM outbox.running`) == "18 2"
	})
	copied := restored(t, db, dump, psql)
	release()
	old.Stop()

	if n := copied.Int(t, `SELECT count(*) FROM outbox.running WHERE xid > pg_current_xact_id()`); n != 1 {
		t.Fatalf("%d batches have an id of the future, want 1", n)
	}
	copied.Enqueue(t, "LEASED", 10)
	r := run(t, copied, all(), relay.Config{})
	copied.Emptied(t, 30*time.Second)
	r.Stop()
	if got, want := copied.Text(t, `SELECT string_agg(attempts, ', ') FROM (
		SELECT count(*) || ' in attempt ' || attempt AS attempts FROM effect GROUP BY attempt ORDER BY attempt) a`), "12 in attempt 1, 19 in attempt 2"; got != want {
		t.Errorf("%s; want %s: a batch of 18 and one other task were lost\n%s", got, want, copied.Dump(t))
	}
	if n := r.Log.Count(outageBegins) + r.Log.Count("cannot be claimed"); n != 0 {
		t.Errorf("%d outages and refusals were logged", n)
	}
	copied.Invariants(t)
}
