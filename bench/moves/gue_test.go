package moves

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/vgarvardt/gue/v5"
	"github.com/vgarvardt/gue/v5/adapter"
	"github.com/vgarvardt/gue/v5/adapter/libpq"
)

// onGue is a database with the tables of both queues, and a client of gue's.
func onGue(t *testing.T) (*relaytest.Database, adapter.ConnPool, *gue.Client) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/vgarvardt/gue/v5")
	dir, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	schema, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "migrations", "schema.sql"))
	if err != nil {
		t.Fatal(err)
	}
	db := relaytest.Adopt(t, pgtest.Database(t))
	db.Do(t, string(schema))
	pool := libpq.NewConnPool(db.DB)
	client, err := gue.NewClient(pool, gue.WithClientBackoff(gue.NewConstantBackoff(time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	return db, pool, client
}

// users are those whose jobs gue has, with the errors of each.
const users = `
	SELECT string_agg(convert_from(args, 'UTF8')::jsonb->>'user_id' || ' ' || error_count, ', ' ORDER BY job_id)
	  FROM gue_jobs`

// User 1's job has failed, 2's runs, 3's is scheduled, and 4's is due in a queue without a worker.
func TestJobsOfGueMoveByTheSQLOfThePage(t *testing.T) {
	db, _, client := onGue(t)
	byGue, running, release := newSent(), make(chan struct{}), make(chan struct{})
	work := workMap(func(ctx context.Context, userID int64, key string) error {
		switch userID {
		case 1:
			return errors.New("mail server away")
		case 2:
			close(running)
			<-release
			return errors.New("mail server away, too")
		}
		return byGue.send(ctx, userID, key)
	})
	at := time.Now().Add(2 * time.Hour).Truncate(time.Second)
	for i, j := range []*gue.Job{{Priority: 7}, {}, {RunAt: at}, {Queue: "elsewhere"}} {
		j.Type, j.Args = "send_welcome", fmt.Appendf(nil, `{"user_id": %d}`, i+1)
		if err := client.Enqueue(t.Context(), j); err != nil {
			t.Fatal(err)
		}
	}
	worker, err := gue.NewWorker(client, work)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		worker.WorkOne(context.Background()) // user 2's has the more urgent priority
		worker.WorkOne(context.Background())
	}()
	free := sync.OnceFunc(func() { close(release); <-done })
	t.Cleanup(free)
	<-running
	second, err := gue.NewWorker(client, work)
	if err != nil {
		t.Fatal(err)
	}
	if !second.WorkOne(t.Context()) {
		t.Fatal("gue does not run user 1's job")
	}
	db.Want(t, "1 1, 2 0, 3 0, 4 0", users)

	statement := sqlOf(t, "gue.md")
	if n := moveAll(t, db.DB, statement); n != 3 {
		t.Errorf("%d jobs are moved, want those of 3 users", n)
	}
	db.Want(t, "2 0", users)
	db.Want(t, "1 scheduled 7, 3 scheduled 0, 4 ready 0", `
		SELECT string_agg(format('%s %s %s', payload->>'user_id', state, priority), ', ' ORDER BY payload->>'user_id')
		  FROM outbox.task`)
	db.Want(t, "3", `SELECT payload->>'user_id' FROM outbox.task WHERE run_at = $1`, at)
	byOutbox := newSent()
	relaytest.Once(t, db.DB, registry(byOutbox), relay.Config{})
	byOutbox.want(t, "before the others are due", 4)

	free()
	db.Want(t, "2 1", users)
	if n := moveAll(t, db.DB, statement); n != 1 {
		t.Errorf("%d jobs are moved after gue has stopped, want 1", n)
	}
	db.Due(t)
	relaytest.Once(t, db.DB, registry(byOutbox), relay.Config{})
	byOutbox.want(t, "at the end", 1, 2, 3, 4)
	byGue.want(t, "of gue")
	db.Want(t, "", users)
}

func TestAMovedJobOfGueIsAsIfEnqueuedInOutbox(t *testing.T) {
	db, pool, client := onGue(t)
	tomorrow := time.Now().Add(24 * time.Hour).Truncate(time.Second)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(enqueueInGue(t.Context(), client, tx, tomorrow), tx.Commit(t.Context())); err != nil {
		t.Fatal(err)
	}
	bySQL, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(enqueueBySQL(t.Context(), bySQL, tomorrow), bySQL.Commit()); err != nil {
		t.Fatal(err)
	}
	if n := moveAll(t, db.DB, sqlOf(t, "gue.md")); n != 1 {
		t.Errorf("%d jobs are moved, want 1", n)
	}
	db.Want(t, "5 ", `SELECT string_agg(COALESCE(max_attempts::text, ''), ' ' ORDER BY task_id) FROM outbox.task`)
	db.Do(t, `UPDATE outbox.task SET max_attempts = NULL`) // gue has no limit
	wantTwins(t, db)
}

func TestAJobOfGueWithoutArgsMovesAndOneThatIsNoJSONStopsTheSQL(t *testing.T) {
	db, _, client := onGue(t)
	if err := client.Enqueue(t.Context(), &gue.Job{Type: "send_welcome"}); err != nil {
		t.Fatal(err)
	}
	if n := moveAll(t, db.DB, sqlOf(t, "gue.md")); n != 1 {
		t.Errorf("%d jobs are moved, want 1", n)
	}
	db.Want(t, "{}", `SELECT payload FROM outbox.task`)
	for _, args := range []string{`{"user_id": 1}`, "\x01"} {
		if err := client.Enqueue(t.Context(), &gue.Job{Type: "send_welcome", Args: []byte(args)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.ExecContext(t.Context(), sqlOf(t, "gue.md")); err == nil {
		t.Error("args that are no JSON are moved")
	}
	db.Want(t, "2 1", `SELECT (SELECT count(*) FROM gue_jobs) || ' ' || (SELECT count(*) FROM outbox.task)`)
}

// The page says so of gue, and of outbox the opposite.
func TestGueCommitsTheWritesOfAJobThatFailed(t *testing.T) {
	db, _, client := onGue(t)
	if err := client.Enqueue(t.Context(), &gue.Job{Type: "write", Args: []byte(`{}`)}); err != nil {
		t.Fatal(err)
	}
	worker, err := gue.NewWorker(client, gue.WorkMap{"write": func(ctx context.Context, j *gue.Job) error {
		_, err := j.Tx().Exec(ctx, `INSERT INTO effect (task_id) VALUES (1)`)
		return errors.Join(err, errors.New("after the write"))
	}})
	if err != nil {
		t.Fatal(err)
	}
	worker.WorkOne(t.Context())
	db.Want(t, "1 1", `SELECT (SELECT count(*) FROM effect) || ' ' || (SELECT error_count FROM gue_jobs)`)
}
