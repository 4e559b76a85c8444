package crashes_test

import (
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// poison is tasks that end the process of their relay, among others.
type poison struct {
	name      string
	taskType  string
	processes int
	workers   int
	poisons   int
	others    int
	max       int // attempts
	mayLose   int // attempts that another task may lose
	ms        int // of each task; 0: most take no time
	once      bool
	expiring  bool
}

var poisons = []poison{
	{name: "Tx", taskType: "TX", processes: 2, workers: 3, poisons: 1, others: 100, max: 3, mayLose: 1, expiring: true},
	{name: "Tx, of many", taskType: "TX", processes: 4, workers: 10, poisons: 1, others: 10_000, max: 3, mayLose: 1},
	{name: "Batch", taskType: "BATCH", processes: 4, workers: 3, poisons: 1, others: 400, max: 3, mayLose: 1},
	{name: "Leased", taskType: "LEASED", processes: 4, workers: 10, poisons: 1, others: 400, max: 3, mayLose: 1},
	{name: "Tx, at most one", taskType: "TX", processes: 2, workers: 3, poisons: 1, others: 50, max: 1, mayLose: 1},
	{name: "Leased, at most two", taskType: "LEASED", processes: 2, workers: 3, poisons: 1, others: 50, max: 2,
		mayLose: 1},
	// Each poison can take a task along while the other's suspects already run alone.
	{name: "two Tx", taskType: "TX", processes: 4, workers: 3, poisons: 2, others: 500, max: 3, mayLose: 2},
	{name: "two Leased", taskType: "LEASED", processes: 4, workers: 4, poisons: 2, others: 200, max: 3, mayLose: 2},
	// Three lost runs are the most that a poison costs another task, also where all are slow.
	{name: "Leased, of 1 s", taskType: "LEASED", processes: 4, workers: 250, poisons: 1, others: 10_000, max: 10,
		mayLose: 3, ms: 1000},
	{name: "Tx, of 200 ms", taskType: "TX", processes: 4, workers: 10, poisons: 1, others: 1000, max: 10, mayLose: 3,
		ms: 200},
	{name: "Batch, of 100 ms a task", taskType: "BATCH", processes: 4, workers: 10, poisons: 1, others: 1000, max: 10,
		mayLose: 3, ms: 100},
	{name: "Tx, and nobody restarts the relays", taskType: "TX", processes: 4, workers: 3, poisons: 1, others: 500, max: 3,
		mayLose: 1, once: true},
}

// I5, F18, C15.
func TestGuaranteesOfProcesses(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	server := pgtest.Local(t, map[string]string{"max_connections": "1500"})
	tests := map[string]func(*testing.T){}
	add := func(name string, test func(*testing.T, *relaytest.Database)) {
		tests[name] = func(t *testing.T) { test(t, newDatabase(t, server)) }
	}
	for _, p := range poisons[:relaytest.Times(1, len(poisons))] {
		add("a task that ends its process is started exactly max attempts times: "+p.name, p.test)
	}
	add("no task is lost or done twice when its relay is killed at any point", testKilledAtEachPoint)
	relaytest.Together(t, tests)
}

func (p poison) test(t *testing.T, db *relaytest.Database) {
	// The poison stands in the middle of what the relays claim first. Every twentieth other task takes a
	// while, so that a process is busy when it ends.
	db.Do(t, `INSERT INTO outbox.task (task_type, max_attempts, payload)
		SELECT $1, $4, jsonb_build_object('Kill', n > $2::int / 20 AND n <= $2::int / 20 + $3::int,
		         'Ms', CASE WHEN $5 > 0 THEN $5 WHEN n % 20 = 0 THEN 20 ELSE 0 END)
		  FROM generate_series(1, $2::int + $3::int) n`, p.taskType, p.others, p.poisons, p.max, p.ms)
	f := &fleet{db: db, workers: p.workers, once: p.once, expiring: p.expiring}
	f.start(t, p.processes)
	relaytest.Eventually(t, 20*time.Minute, "the poison is dead and the other tasks are done", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.dead_task`) >= p.poisons &&
			db.Int(t, `SELECT count(*) FROM outbox.task`) == 0
	})
	// A run that is not yet known to be lost does not count in the number that the handler sees.
	least := p.max
	if p.poisons > 1 { // one may end the process in which the other is about to start
		least = 1
	}
	wrong := db.Text(t, `SELECT string_agg(attempts, ', ') FROM (
		SELECT string_agg(attempt::text, ' ' ORDER BY attempt) AS attempts FROM (
			SELECT task_id, attempt, row_number() OVER (PARTITION BY task_id ORDER BY attempt) AS n FROM start) s
		 GROUP BY task_id HAVING count(*) NOT BETWEEN $1 AND $2 OR max(attempt) > $2 OR $1 > 1
		 AND bool_or(attempt > n)) s`, least, p.max)
	if wrong != "" || db.Int(t, `SELECT count(DISTINCT task_id) FROM start`) != p.poisons {
		t.Errorf("the handler was started with the poison as attempts %s, want %d starts of each of %d poisons", wrong, p.max,
			p.poisons)
	}
	if got := db.Int(t, `SELECT count(*) FROM outbox.dead_task WHERE reason = 'attempts' AND attempt = $1
		AND max_attempts = $1 AND (payload ->> 'Kill')::bool AND last_error <> ''`, p.max); got != p.poisons ||
		db.Int(t, `SELECT count(*) FROM outbox.dead_task`) != got {
		t.Errorf("%d dead letters are poisons of %d attempts, want %d\n%s", got, p.max, p.poisons, db.Dump(t))
	}
	if got := db.Int(t, `SELECT count(DISTINCT task_id) FROM done`); got != p.others ||
		db.Int(t, `SELECT count(*) FROM done`) != got {
		t.Errorf("effects of %d tasks, want one each of %d", got, p.others)
	}
	if got := db.Text(t, `SELECT json_agg(d) FROM done d WHERE attempt - 1 > $1`, p.mayLose); got != "" {
		t.Errorf("innocent tasks lost more than %d attempts: %s", p.mayLose, got)
	}
}
