package crashes_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// poison registers handlers of each kind that end their process when they get a payload below zero, and else write one
// effect; some take a while, so that a process is busy when it ends.
func poison(side *sql.DB) *handlers.Registry {
	reg := handlers.New()
	begin := func(ctx context.Context, task *outbox.Task[relaytest.Payload]) {
		if task.Payload.N >= 0 {
			if task.Payload.N%20 == 0 {
				_, _ = side.ExecContext(ctx, `SELECT pg_sleep(0.02)`)
			}
			return
		}
		ctx = context.WithoutCancel(ctx) // on a machine that stands still a start is written late, and not left out
		_, err := side.ExecContext(ctx, `INSERT INTO start (task_id, attempt) VALUES ($1, $2)`, task.ID, task.Attempt)
		if err == nil && task.Attempt == 2 {
			_, err = side.ExecContext(ctx, `SELECT pg_sleep(0.1)`)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(3)
	}
	three := handlers.MaxAttempts(3)
	relaytest.Tx(reg, relaytest.TypeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[relaytest.Payload]) error {
		begin(ctx, task)
		return relaytest.Effect(ctx, tx, task.ID, attemptOf(task))
	}, three)
	handlers.Batch(reg, relaytest.TypeBatch, 50, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[relaytest.Payload]) error {
		for _, task := range tasks {
			begin(ctx, task)
			if err := relaytest.Effect(ctx, tx, task.ID, attemptOf(task)); err != nil {
				return err
			}
		}
		return nil
	}, three)
	handlers.Leased(reg, relaytest.TypeLeased, func(ctx context.Context, task *outbox.Task[relaytest.Payload]) error {
		begin(ctx, task)
		return task.Complete(ctx, func(tx *sql.Tx) error { return relaytest.Effect(ctx, tx, task.ID, attemptOf(task)) })
	}, three)
	return reg
}

// slowPoison registers handlers with the default number of attempts. They take as many milliseconds
// as their payload says. One below zero ends its process when half of its time is over.
func slowPoison(side *sql.DB) *handlers.Registry {
	reg := handlers.New()
	run := func(ctx context.Context, task *outbox.Task[relaytest.Payload]) {
		ms := task.Payload.N
		if ms >= 0 {
			pause(ctx, ms)
			return
		}
		if _, err := side.ExecContext(context.WithoutCancel(ctx), `INSERT INTO start (task_id, attempt) VALUES ($1, $2)`, task.ID, task.Attempt); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		pause(ctx, -ms/2)
		os.Exit(3)
	}
	relaytest.Tx(reg, relaytest.TypeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[relaytest.Payload]) error {
		run(ctx, task)
		return relaytest.Effect(ctx, tx, task.ID, attemptOf(task))
	})
	handlers.Batch(reg, relaytest.TypeBatch, 5, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[relaytest.Payload]) error {
		for _, task := range tasks {
			run(ctx, task)
			if err := relaytest.Effect(ctx, tx, task.ID, attemptOf(task)); err != nil {
				return err
			}
		}
		return nil
	})
	handlers.Leased(reg, relaytest.TypeLeased, func(ctx context.Context, task *outbox.Task[relaytest.Payload]) error {
		run(ctx, task)
		return task.Complete(ctx, func(tx *sql.Tx) error { return relaytest.Effect(ctx, tx, task.ID, attemptOf(task)) })
	})
	return reg
}

// attemptOf is the attempt without those that ended by a timeout, as on a machine that stands still.
func attemptOf(task *outbox.Task[relaytest.Payload]) int {
	n := task.Attempt
	for _, e := range task.Errors {
		if e.Error != "lost" {
			n--
		}
	}
	return n
}

// pause is work that a handler does apart from the database.
func pause(ctx context.Context, ms int) {
	select {
	case <-time.After(time.Duration(ms) * time.Millisecond):
	case <-ctx.Done():
	}
}

// poisonCase is tasks that end the process of their relay, among others, with max attempts 3.
type poisonCase struct {
	millis    int // of a handler with the default number of attempts; 0: of those above
	taskType  string
	processes int
	workers   int
	poisons   int
	others    int
	restart   bool
	hasten    bool
	mayLose   int // attempts that another task may lose
	max       int // attempts; 3 if 0
}

func (c poisonCase) test(t *testing.T, db *relaytest.Database) {
	c.max = cmp.Or(c.max, 3)
	db.Do(t, `CREATE TABLE start (task_id bigint NOT NULL, attempt int NOT NULL)`)
	// The poison stands in the middle of what the relays claim first.
	db.Do(t, `INSERT INTO outbox.task (task_type, max_attempts, payload)
		SELECT $1, CASE WHEN n > $2::int / 20 AND n <= $2::int / 20 + $3::int AND $4 <> 3 THEN $4 END, jsonb_build_object('N', CASE WHEN n > $2::int / 20 AND n <= $2::int / 20 + $3::int THEN -1 ELSE 1 END * COALESCE(NULLIF($5, 0), n))
		  FROM generate_series(1, $2::int + $3::int) n`, c.taskType, c.others, c.poisons, c.max, c.millis)
	begun := time.Now()
	program := "poison"
	if c.millis > 0 {
		program = "slow poison"
	}
	f := &fleet{DB: db, Program: program, Workers: c.workers, Restart: c.restart, Hasten: c.hasten}
	f.Start(t, c.processes)
	relaytest.Eventually(t, 20*time.Minute, "the poison is dead and the other tasks are done", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.dead_task`) >= c.poisons && db.Int(t, `SELECT count(*) FROM outbox.task`) == 0
	})
	t.Logf("done after %v", time.Since(begun).Round(time.Millisecond))
	// A run that is not yet known to be lost does not count in the number that the handler sees.
	least := c.max
	if c.poisons > 1 { // one may end the process in which the other is about to start
		least = 1
	}
	wrong := db.Text(t, `SELECT string_agg(attempts, ', ') FROM (
		SELECT string_agg(attempt::text, ' ' ORDER BY attempt) AS attempts FROM (
			SELECT task_id, attempt, row_number() OVER (PARTITION BY task_id ORDER BY attempt) AS n FROM start) s
		 GROUP BY task_id HAVING count(*) NOT BETWEEN $1 AND $2 OR max(attempt) > $2 OR $1 > 1 AND bool_or(attempt > n)) s`, least, c.max)
	if wrong != "" || db.Int(t, `SELECT count(DISTINCT task_id) FROM start`) != c.poisons {
		t.Errorf("the handler was started with the poison as attempts %s, want %d starts of each of %d poisons", wrong, c.max, c.poisons)
	}
	if got := db.Int(t, `SELECT count(*) FROM outbox.dead_task WHERE reason = 'attempts' AND attempt = $1 AND max_attempts = $1
		AND (payload ->> 'N')::int < 0 AND last_error <> ''`, c.max); got != c.poisons || db.Int(t, `SELECT count(*) FROM outbox.dead_task`) != got {
		t.Errorf("%d dead letters are poisons of %d attempts, want %d\n%s", got, c.max, c.poisons, db.Dump(t))
	}
	if got := db.Int(t, `SELECT count(DISTINCT task_id) FROM effect`); got != c.others || db.Int(t, `SELECT count(*) FROM effect`) != got {
		t.Errorf("effects of %d tasks, want one each of %d", got, c.others)
	}
	if got := db.Int(t, `SELECT max(attempt) - 1 FROM effect`); got > c.mayLose {
		t.Errorf("an innocent task lost %d attempts, at most %d are allowed: %s", got, c.mayLose,
			db.Text(t, `SELECT json_agg(e) FROM effect e WHERE attempt - 1 > $1`, c.mayLose))
	}
	t.Log("innocent tasks by attempts: ", db.Text(t, `SELECT json_object_agg(attempt, n ORDER BY attempt) FROM (SELECT attempt, count(*) AS n FROM effect GROUP BY attempt) a`))
}

// Suspects are claimed together with the poison that made them suspects, and its next start ends this process, too.
func testSuspectsDoNotCostEachOther(t *testing.T, db *relaytest.Database) {
	db.Do(t, `CREATE TABLE start (task_id bigint NOT NULL, attempt int NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	// Whoever does not get to run is still being put back, and its run being forgotten, when the process ends.
	db.Do(t, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		  IF TG_OP <> 'DELETE' OR current_query() LIKE '%forget runs%' THEN PERFORM pg_sleep(0.2); END IF;
		  RETURN NULL;
		END $$;
		CREATE TRIGGER back AFTER INSERT OR UPDATE ON outbox.task FOR EACH ROW WHEN (NEW.state = 'scheduled') EXECUTE FUNCTION slow();
		CREATE TRIGGER forget AFTER DELETE ON outbox.running FOR EACH STATEMENT EXECUTE FUNCTION slow()`)
	const dead = "00000000-0000-4000-8000-000000000000"
	for round := range relaytest.Times(1, 6) { // one kind after the other
		db.Do(t, `TRUNCATE outbox.task, outbox.running, outbox.relay, effect, start`)
		taskType := []string{"TX", "BATCH", "LEASED"}[round%3]
		db.Do(t, `WITH new AS (
			  INSERT INTO outbox.task (task_type, payload, relay_id, attempt)
			  SELECT $1, jsonb_build_object('N', CASE n WHEN $2::int THEN -1 ELSE n END),
			         CASE $1 WHEN 'LEASED' THEN $3::uuid END, CASE $1 WHEN 'LEASED' THEN 1 ELSE 0 END
			    FROM generate_series(1, 20) n RETURNING task_id)
			INSERT INTO outbox.running (task_id, token, relay_id) SELECT task_id, $3::uuid, $3::uuid FROM new WHERE $1 <> 'LEASED'`,
			taskType, 1+round, dead)
		p := start(t, db, "poison", 10)
		select {
		case <-p.Ended:
		case <-time.After(3 * time.Minute):
			t.Fatalf("%s: the poison was not started\n%s", taskType, db.Dump(t))
		}
		if got := db.Int(t, `SELECT count(*) FROM start WHERE attempt = 2`); got != 1 {
			t.Errorf("%s: %d second attempts of the poison, want 1", taskType, got)
		}
		// What a claim of a backend that has not noticed yet holds is still in the table. A suspect that has run for 3 s, as on a
		// machine that stands still, has others beside it.
		if got := db.Text(t, `SELECT json_agg(c) FROM (
			SELECT task_id, t.attempt + (SELECT count(*) FROM outbox.running r WHERE r.task_id = t.task_id
			         AND (r.relay_id = $1 OR r.started_at > (SELECT max(at) FROM start) - interval '3 seconds')) AS lost
			  FROM outbox.task t WHERE (payload ->> 'N')::int > 0) c WHERE lost > 1`, dead); got != "" {
			t.Errorf("%s: innocent tasks lost more than one attempt: %s", taskType, got)
		}
		if got := db.Int(t, `SELECT count(*) FROM effect WHERE attempt > 2`); got != 0 {
			t.Errorf("%s: %d innocent tasks were done after more than one lost attempt", taskType, got)
		}
	}
}

// F18, C15.
func poisonTests() map[string]func(*testing.T, *relaytest.Database) {
	many := relaytest.Times(100, 10_000)
	slow := 1000 // OUTBOX_TEST_POISON_MILLIS=30000 takes half an hour
	if n, err := strconv.Atoi(os.Getenv("OUTBOX_TEST_POISON_MILLIS")); err == nil {
		slow = n
	}
	cases := map[string]poisonCase{
		"Tx": {taskType: "TX", processes: relaytest.Times(2, 4), workers: relaytest.Times(3, 10),
			poisons: 1, others: many, restart: true, mayLose: 1},
		"Batch, in the middle of one": {taskType: "BATCH", processes: 4, workers: 3, poisons: 1, others: 400, restart: true, hasten: true,
			mayLose: 1},
		"Leased":              {taskType: "LEASED", processes: 4, workers: 10, poisons: 1, others: 400, restart: true, hasten: true, mayLose: 1},
		"Tx, at most one":     {taskType: "TX", processes: 2, workers: 3, poisons: 1, others: 50, restart: true, hasten: true, mayLose: 1, max: 1},
		"Leased, at most two": {taskType: "LEASED", processes: 2, workers: 3, poisons: 1, others: 50, restart: true, hasten: true, mayLose: 1, max: 2},
		// Each poison can take a task along while the other's suspects already run alone.
		"two Tx":     {taskType: "TX", processes: 4, workers: 3, poisons: 2, others: 500, restart: true, hasten: true, mayLose: 2},
		"two Leased": {taskType: "LEASED", processes: 4, workers: 4, poisons: 2, others: 200, restart: true, hasten: true, mayLose: 2},
		// Three lost runs are the most that a poison costs another task, also where all are slow.
		"Leased, of 1 s": {millis: slow, taskType: "LEASED", processes: 4, workers: 250, poisons: 1, others: 10_000, restart: true, hasten: true,
			mayLose: 3, max: 20},
		"Tx, of 200 ms": {millis: 200, taskType: "TX", processes: 4, workers: 10, poisons: 1, others: 1_000, restart: true, hasten: true,
			mayLose: 3, max: 10},
		"Batch, of 100 ms a task": {millis: 100, taskType: "BATCH", processes: 4, workers: 10, poisons: 1, others: 1_000, restart: true, hasten: true,
			mayLose: 3, max: 10},
		"Tx, and nobody restarts the relays": {taskType: "TX", processes: 4, workers: 3, poisons: 1, others: 500, hasten: true,
			mayLose: 1},
	}
	names := slices.Collect(maps.Keys(cases))
	if os.Getenv("OUTBOX_TEST_LONG") == "" {
		names = []string{"Tx"}
	}
	tests := map[string]func(*testing.T, *relaytest.Database){}
	for _, name := range names {
		tests[fmt.Sprintf("a task that ends its process is started exactly max attempts times: %s", name)] = cases[name].test
	}
	return tests
}
