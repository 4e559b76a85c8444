package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/pgdb"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestEachRunDoesWhatIsDueThen(t *testing.T) {
	url := pgtest.Database(t)
	db, err := pgdb.Open(url)
	relaytest.Must(err)
	defer db.Close()
	for i, step := range []struct {
		enqueue int
		due     string // SQL before the run
		want    string
	}{
		{0, `SELECT 1`, "0 reports made\n"},
		{7, `SELECT 1`, "7 reports made\n"},
		{0, `INSERT INTO outbox.task (task_type) VALUES ('MAKE_REPORT')`, "1 reports made\n"},
		{0, `UPDATE outbox.schedule SET next_at = now() - interval '2 days'`, "1 reports made\n"},
	} {
		if _, err := db.Exec(step.due); err != nil {
			t.Fatal(err)
		}
		*enqueue = step.enqueue
		var out bytes.Buffer
		if err := run(t.Context(), url, &out); err != nil || out.String() != step.want {
			t.Errorf("run %d printed %q, %v; want %q", i+1, &out, err, step.want)
		}
	}
}
