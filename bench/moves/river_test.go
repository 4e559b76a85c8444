package moves

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// sent counts the mails to each user, and has the keys that the calls had.
type sent struct {
	mu    sync.Mutex
	mails map[int64]int
	keys  map[int64]string
}

func newSent() *sent { return &sent{mails: map[int64]int{}, keys: map[int64]string{}} }

func (s *sent) send(_ context.Context, userID int64, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mails[userID]++
	s.keys[userID] = key
	return nil
}

func (s *sent) count() map[int64]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.mails)
}

// want checks that each of these users got one mail, and nobody else.
func (s *sent) want(t *testing.T, when string, users ...int64) {
	t.Helper()
	wrong := s.count()
	for _, u := range users {
		if wrong[u]--; wrong[u] == 0 {
			delete(wrong, u)
		}
	}
	if len(wrong) > 0 {
		t.Errorf("%s users have got too many or too few mails, by user: %v", when, wrong)
	}
}

// onRiver is a database with the tables of both queues, and a pool of River's.
func onRiver(t *testing.T) (*relaytest.Database, *pgxpool.Pool, *rivermigrate.Migrator[pgx.Tx]) {
	t.Helper()
	db := relaytest.Adopt(t, pgtest.Database(t))
	pool, err := pgxpool.New(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
	return db, pool, migrator
}

// hourly retries an hour later: River's own first wait is a second.
type hourly struct{}

func (hourly) NextRetry(*rivertype.JobRow) time.Time { return time.Now().Add(time.Hour) }

// working starts a client of River that sends as it is told.
func working(t *testing.T, pool *pgxpool.Pool,
	send func(context.Context, int64, string) error) *river.Client[pgx.Tx] {
	t.Helper()
	workers := river.NewWorkers()
	river.AddWorker(workers, &welcomeWorker{send: send})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger: slog.New(slog.DiscardHandler), Workers: workers, RetryPolicy: hourly{},
		FetchCooldown: time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.StopAndCancel(context.Background()); err != nil {
			t.Errorf("River's client does not stop: %v", err)
		}
	})
	return client
}

// moveAll repeats a statement until it moves no row, as the pages say.
func moveAll(t *testing.T, db *sql.DB, statement string) (moved int64) {
	t.Helper()
	for {
		result, err := db.ExecContext(t.Context(), statement)
		if err != nil {
			t.Fatalf("%s\n%v", statement, err)
		}
		n, err := result.RowsAffected()
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return moved
		}
		moved += n
	}
}

// registry has the handler of the pages.
func registry(s *sent) *handlers.Registry {
	reg := handlers.New()
	register(reg, s.send)
	return reg
}

const riverStates = `
	SELECT string_agg(args->>'user_id' || ' ' || state, ', ' ORDER BY args->>'user_id') FROM river_job`

// Users 1 to 8 each have a job of River in another state. Those that wait are moved while River's
// client works, that of a killed client after it has stopped, and a discarded one after a JobRetry.
func TestJobsOfRiverMoveByTheSQLOfThePage(t *testing.T) {
	db, pool, migrator := onRiver(t)
	byRiver, release := newSent(), make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	client := working(t, pool, func(ctx context.Context, userID int64, key string) error {
		switch userID {
		case 1, 7:
			return errors.New("mail server away")
		case 2:
			return river.JobSnooze(time.Hour)
		case 3:
			<-release
		}
		return byRiver.send(ctx, userID, key)
	})
	t.Cleanup(free)
	for userID, opts := range map[int64]*river.InsertOpts{
		1: nil, 2: nil, 3: nil, 6: nil,
		4: {Queue: "elsewhere", Priority: 3, MaxAttempts: 7}, // no client works there
		5: {ScheduledAt: time.Now().Add(2 * time.Hour)},
		7: {MaxAttempts: 1},
	} {
		if _, err := client.Insert(t.Context(), Welcome{UserID: userID}, opts); err != nil {
			t.Fatal(err)
		}
	}
	const inAllStates = "1 retryable, 2 scheduled, 3 running, 4 available, 5 scheduled, 6 completed, 7 discarded"
	relaytest.Eventually(t, time.Minute, inAllStates, func() bool { return db.Text(t, riverStates) == inAllStates })

	db.Do(t, `CREATE TABLE before AS SELECT * FROM river_job`)
	statement := sqlOf(t, "river.md")
	if n := moveAll(t, db.DB, statement); n != 4 {
		t.Fatalf("%d jobs are moved, want those of 4 users", n)
	}
	db.Want(t, "3 running, 6 completed, 7 discarded", riverStates)
	db.Want(t, "1 scheduled 24, 2 scheduled 25, 4 ready 7, 5 scheduled 25", `
		SELECT string_agg(format('%s %s %s', payload->>'user_id', state, max_attempts), ', ' ORDER BY payload->>'user_id')
		  FROM outbox.task`)
	db.Want(t, "4", `SELECT count(*) FROM outbox.task t JOIN before b ON t.headers->>'old_id' = b.id::text
		WHERE task_type = kind AND payload = args AND run_at = scheduled_at AND t.priority = b.priority - 1`)

	byOutbox := newSent()
	relaytest.Once(t, db.DB, registry(byOutbox), relay.Config{})
	byOutbox.want(t, "before the others are due", 4)
	if want := db.Text(t, `SELECT id FROM before WHERE args->>'user_id' = '4'`); byOutbox.keys[4] != want {
		t.Errorf("user 4's key is %q, want the job's id %s", byOutbox.keys[4], want)
	}

	free()
	relaytest.Eventually(t, time.Minute, "River ends the job that ran", func() bool {
		return db.Text(t, riverStates) == "3 completed, 6 completed, 7 discarded"
	})
	if err := client.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	discarded := db.Int(t, `SELECT id FROM river_job WHERE state = 'discarded'`)
	if _, err := client.JobRetry(t.Context(), int64(discarded)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Insert(t.Context(), Welcome{UserID: 8}, &river.InsertOpts{MaxAttempts: 1}); err != nil {
		t.Fatal(err)
	}
	db.Do(t, `UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now() WHERE args->>'user_id' = '8'`)
	all := strings.Replace(statement, "'retryable'", "'retryable', 'running'", 1)
	if n := moveAll(t, db.DB, all); n != 2 {
		t.Errorf("%d jobs are moved after River has stopped, want those of 2 users", n)
	}

	db.Due(t)
	relaytest.Once(t, db.DB, registry(byOutbox), relay.Config{})
	byOutbox.want(t, "at the end", 1, 2, 4, 5, 7, 8)
	byRiver.want(t, "of River", 3, 6)
	db.Want(t, "0", `SELECT count(*) FROM outbox.task`)

	db.Do(t, `DROP TABLE before`)
	down := &rivermigrate.MigrateOpts{TargetVersion: -1}
	if _, err := migrator.Migrate(t.Context(), rivermigrate.DirectionDown, down); err != nil {
		t.Fatal(err)
	}
	db.Want(t, "0", `SELECT count(*) FROM pg_class WHERE relname LIKE 'river%'`)
}

func TestAJobRunsOnceWhileRiverWorksAndTheSQLMoves(t *testing.T) {
	db, pool, _ := onRiver(t)
	insertOnly, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	const jobs = 400
	users, many := make([]int64, jobs), make([]river.InsertManyParams, jobs)
	for i := range many {
		users[i] = int64(i + 1)
		many[i].Args = Welcome{UserID: users[i]}
	}
	if _, err := insertOnly.InsertMany(t.Context(), many); err != nil {
		t.Fatal(err)
	}
	all := newSent()
	working(t, pool, all.send)
	relaytest.Eventually(t, time.Minute, "River works", func() bool { return len(all.count()) > 0 })
	moved := moveAll(t, db.DB, strings.Replace(sqlOf(t, "river.md"), "LIMIT 1000", "LIMIT 20", 1))
	if moved == 0 || moved == jobs {
		t.Errorf("%d of %d jobs are moved, want some", moved, jobs)
	}
	relaytest.Once(t, db.DB, registry(all), relay.Config{})
	relaytest.Eventually(t, time.Minute, "River has no job", func() bool {
		return db.Int(t, `SELECT count(*) FROM river_job WHERE state <> 'completed'`) == 0
	})
	all.want(t, "of both", users...)
}

func TestTheSQLLeavesAJobThatRiverIsTaking(t *testing.T) {
	db, pool, _ := onRiver(t)
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	two := []river.InsertManyParams{{Args: Welcome{UserID: 1}}, {Args: Welcome{UserID: 2}}}
	if _, err := client.InsertMany(t.Context(), two); err != nil {
		t.Fatal(err)
	}
	db.Hold(t, `UPDATE river_job SET state = 'running', attempt = 1 WHERE args->>'user_id' = '1'`) // as its claim does
	within, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := db.ExecContext(within, sqlOf(t, "river.md")); err != nil {
		t.Fatalf("the SQL waits for River: %v", err)
	}
	db.Want(t, "2", `SELECT string_agg(payload->>'user_id', ' ') FROM outbox.task`)
}

func TestAMovedJobOfRiverIsAsIfEnqueuedInOutbox(t *testing.T) {
	db, pool, _ := onRiver(t)
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	tomorrow := time.Now().Add(24 * time.Hour)
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return errors.Join(insertInRiver(t.Context(), client, tx, tomorrow), enqueueByPgx(t.Context(), tx, tomorrow))
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := moveAll(t, db.DB, sqlOf(t, "river.md")); n != 1 {
		t.Errorf("%d jobs are moved, want 1", n)
	}
	wantTwins(t, db)
}

// With unique_key among its columns the SQL drops a job whose key is taken, and runs with the rights
// that the page names.
func TestMovedJobsOfRiverHaveUniqueKeys(t *testing.T) {
	db, pool, _ := onRiver(t)
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	many := []river.InsertManyParams{{Args: Welcome{UserID: 1}}, {Args: Welcome{UserID: 1}}, {Args: Welcome{UserID: 2}}}
	if _, err := client.InsertMany(t.Context(), many); err != nil {
		t.Fatal(err)
	}
	roles, err := schema.RolesSQL()
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() // the roles are the server's
	keyed := strings.NewReplacer("headers)", "headers, unique_key)",
		"jsonb_build_object('old_id', id::text)", "jsonb_build_object('old_id', id::text), args->>'user_id'").
		Replace(sqlOf(t, "river.md"))
	for _, statement := range []string{
		roles, `CREATE ROLE mover; GRANT outbox_enqueuer TO mover; GRANT SELECT, UPDATE, DELETE ON river_job TO mover`,
		`SET LOCAL ROLE mover`, keyed, `RESET ROLE`,
	} {
		if _, err := tx.Exec(statement); err != nil {
			t.Fatalf("%s\n%v", statement, err)
		}
	}
	var got string
	err = tx.QueryRow(`SELECT string_agg(unique_key || ' of ' || (headers->>'old_id'), ', ' ORDER BY task_id)
		|| '; left ' || (SELECT count(*) FROM river_job) FROM outbox.task`).Scan(&got)
	if want := "1 of 1, 2 of 3; left 0"; err != nil || got != want {
		t.Errorf("the keys of jobs are %s, want %s: %v", got, want, err)
	}
}

// wantTwins checks that there are two tasks which differ in nothing that an app sets but their headers.
func wantTwins(t *testing.T, db *relaytest.Database) {
	t.Helper()
	db.Want(t, "2 1", `SELECT count(*) || ' ' || count(DISTINCT (task_type, payload,
		date_trunc('second', run_at), priority, max_attempts, state)) FROM outbox.task`)
}
