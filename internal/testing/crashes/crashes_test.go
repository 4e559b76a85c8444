package crashes_test

import (
	"context"
	"database/sql"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/child"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/internal/upkeep"
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

// pointsSQL adds the points that a relay's statements pass.
const pointsSQL = `
CREATE TRIGGER a AFTER DELETE ON outbox.task FOR EACH ROW WHEN (OLD.state = 'ready')
EXECUTE FUNCTION at_point('claimed');
CREATE TRIGGER b AFTER UPDATE ON outbox.task FOR EACH ROW WHEN (NEW.state = 'leased')
EXECUTE FUNCTION at_point('leased');
CREATE CONSTRAINT TRIGGER c AFTER UPDATE ON outbox.task DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (NEW.state = 'leased') EXECUTE FUNCTION at_point('lease committed');
CREATE TRIGGER d AFTER DELETE ON outbox.task FOR EACH ROW WHEN (OLD.state = 'leased')
EXECUTE FUNCTION at_point('completed');
CREATE CONSTRAINT TRIGGER e AFTER DELETE ON outbox.task DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (OLD.state = 'leased') EXECUTE FUNCTION at_point('completion committed');
CREATE TRIGGER f AFTER INSERT ON outbox.running FOR EACH ROW EXECUTE FUNCTION at_point('journalled');
CREATE TRIGGER g AFTER DELETE ON outbox.running FOR EACH ROW EXECUTE FUNCTION at_point('handler returned');`

var points = []string{"claimed", "journalled", "handler begun", "effect written", "handler returned",
	"leased", "lease committed", "completed", "completion committed"}

// C1, F14, F16: a relay is killed at each point. Each iteration of each task takes effect once.
func testKilledAtEachPoint(t *testing.T, db *relaytest.Database) {
	db.Do(t, pointsSQL)
	f := &fleet{db: db, workers: 4}
	f.start(t, 4)
	gate, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	lock := func(verb, point string) {
		if _, err := gate.ExecContext(context.Background(), `SELECT pg_advisory_`+verb+`(hashtext($1))`, point); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for range relaytest.Times(1, 5) {
		for _, point := range points {
			lock("lock", point)
			for name := range kinds {
				enqueue(t, db, name, 3, `{}`)
				enqueue(t, db, name, 3, `{"Again": 2}`)
				n += 3 + 3*3
			}
			var victim *child.Process
			relaytest.Eventually(t, 20*time.Second, "a relay is at the point: "+point, func() bool {
				victim = f.named(db.Text(t, `SELECT max(application_name) FROM pg_stat_activity WHERE datname = current_database()
					AND wait_event = 'advisory' AND application_name LIKE 'relay-%'`))
				return victim != nil
			})
			victim.Kill9()
			lock("unlock", point)
		}
	}
	db.Emptied(t, 3*time.Minute)
	if got := db.Int(t, `SELECT count(DISTINCT (task_id, iteration)) FROM done`); got != n {
		t.Errorf("effects of %d iterations, want %d\n%s", got, n, db.Dump(t))
	}
	if got := db.Int(t, `SELECT count(*) - count(DISTINCT (task_id, iteration)) FROM done WHERE attempt > 0`); got != 0 {
		t.Errorf("%d effects happened twice", got)
	}
}

const (
	limit     = 3   // calls of a LIMITED type, or tasks of a key of a PER_KEY type, in all relays
	perSecond = 100 // tasks of a RATED type
)

// limited is in the table inside while it runs, and notes in the table crowd if it finds more than
// the limit there.
func (w worker) limited(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
	return w.perKey(ctx, tx, tasks[:1])
}

// perKey does the same with each of the tasks, of which all of a type have one key.
func (w worker) perKey(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
	task := tasks[0]
	for _, task := range tasks {
		_, err := w.side.Exec(`INSERT INTO inside VALUES ($1, $2, $3)`, task.Type, task.ID, os.Getpid())
		if err != nil {
			return err
		}
	}
	_, err := w.side.Exec(`INSERT INTO crowd SELECT task_type, count(*) FROM inside WHERE task_type = $1
		AND pid NOT IN (SELECT pid FROM dead) GROUP BY 1 HAVING count(*) > $2`, task.Type, limit)
	if err != nil {
		return err
	}
	pause(context.Background(), 300*time.Millisecond)
	for _, task := range tasks {
		_, err = w.side.Exec(`DELETE FROM inside WHERE task_id = $1 AND pid = $2`, task.ID, os.Getpid())
		if err != nil {
			return err
		}
	}
	return nil
}

// Four processes have six workers each. Never more than three calls of a type run at once. Three run
// again after a process was killed while it held slots.
func TestALimitOfATypeHoldsInAllProcessesAndSurvivesTheirDeath(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	holdsInAllProcesses(t, "LIMITED_")
}

func TestALimitOfAKeyHoldsInAllProcessesAndSurvivesTheirDeath(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	holdsInAllProcesses(t, "PER_KEY_")
}

func holdsInAllProcesses(t *testing.T, prefix string) {
	t.Helper()
	db := newDatabase(t, pgtest.Server(t))
	types := []string{prefix + "TX", prefix + "BATCH", prefix + "LEASED"}
	f := &fleet{db: db, workers: 6, once: true}
	f.start(t, 4)
	for _, name := range types {
		enqueue(t, db, name, 2000, `{}`)
	}
	const living = `SELECT count(*) FROM inside WHERE task_type = $1 AND pid NOT IN (SELECT pid FROM dead)`
	full := func() {
		t.Helper()
		for _, name := range types {
			relaytest.Eventually(t, 30*time.Second, "all slots of "+name+" are taken", func() bool {
				return db.Int(t, living, name) == limit
			})
		}
	}
	full()
	for _, name := range relaytest.Part(types, 1) {
		var victim *child.Process
		relaytest.Eventually(t, 30*time.Second, "a process holds a slot of "+name, func() bool {
			pid := db.Int(t, `SELECT coalesce(min(pid), 0) FROM inside WHERE task_type = $1
				AND pid NOT IN (SELECT pid FROM dead)`, name)
			alive := f.running()
			i := slices.IndexFunc(alive, func(p *child.Process) bool { return p.Pid == pid })
			if i >= 0 {
				victim = alive[i]
			}
			return i >= 0
		})
		db.Do(t, `INSERT INTO dead VALUES ($1)`, victim.Pid)
		victim.Kill9()
		full()
	}
	if crowd := db.Text(t, `SELECT json_agg(c) FROM crowd c`); crowd != "" {
		t.Errorf("more than three ran at once: %s", crowd)
	}
	if n := db.Int(t, `SELECT count(DISTINCT task_type) FROM outbox.task
		WHERE state IN ('ready', 'waiting')`); n != len(types) {
		t.Errorf("%d types have work left: the test shows nothing", n)
	}
	for _, p := range f.running() {
		p.Kill9()
	}
	db.Do(t, `TRUNCATE outbox.task`)
}

// rated notes the starts of its tasks.
func (w worker) rated(ctx context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
	for _, task := range tasks {
		if _, err := w.side.ExecContext(ctx, noteStart, task.ID, task.Type, task.Attempt, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

func TestTheRateOfATypeHoldsInAllProcessesAndIsReached(t *testing.T) {
	needs.Timing(t)
	db := newDatabase(t, pgtest.Server(t))
	types := []string{"RATED_TX", "RATED_BATCH", "RATED_LEASED"}
	for _, name := range types {
		enqueue(t, db, name, 6000, `{}`)
	}
	f := &fleet{db: db, workers: 10}
	f.start(t, 3)
	relaytest.Eventually(t, 30*time.Second, "all have begun", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.relay`) == 3 &&
			db.Int(t, `SELECT count(DISTINCT task_type) FROM start`) == 3
	})
	reached := map[string]int{}
	slow := func(name string) bool { return reached[name] < perSecond*9/10 }
	for round := 0; round < 6 && slices.ContainsFunc(types, slow); round++ { // other load on the machine may spoil one
		began := db.Text(t, `SELECT clock_timestamp()`)
		pause(t.Context(), 3*time.Second)
		for _, name := range types {
			n := db.Int(t, `SELECT count(*) FROM start WHERE task_type = $1 AND at BETWEEN $2::timestamptz
				AND $2::timestamptz + interval '3 s'`, name, began)
			reached[name] = max(reached[name], n/3)
		}
	}
	for _, name := range types {
		if slow(name) {
			t.Errorf("%s: %d tasks started in a second with work waiting, want %d at least", name, reached[name], perSecond*9/10)
		}
		// A handler begins a little after its task's token was taken.
		most := db.Int(t, `SELECT max(n) FROM (SELECT count(*) OVER (ORDER BY at RANGE BETWEEN '1 s' PRECEDING
			AND CURRENT ROW) AS n
			FROM start WHERE task_type = $1) AS w`, name)
		if most > perSecond*12/10+2+10 {
			t.Errorf("%s: %d tasks started in one second, want %d at most, and ten that were late", name, most,
				perSecond*12/10+2)
		}
	}
	db.Do(t, `DELETE FROM outbox.task WHERE task_id IN (SELECT task_id FROM outbox.task FOR UPDATE SKIP LOCKED)`)
}

// F25: a deploy or an eviction kills a busy relay. Its tasks begin again once its heartbeat has run
// out: the first within upkeep.TakenOverWithin, the last within 5 s more.
func TestGuaranteesInTimeOfProcesses(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t, pgtest.Local(t, map[string]string{"max_connections": "1500"}))
	const workers = 500
	f := &fleet{db: db, workers: workers, once: true, expiring: true}
	f.start(t, 2)
	relaytest.Eventually(t, 20*time.Second, "both relays are there", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.relay`) == 2
	})
	enqueue(t, db, "LEASED", 4*workers, `{"Ms": 2000}`)
	killed := f.running()[0]
	const held = `SELECT count(*) FROM outbox.task t JOIN outbox.relay r USING (relay_id) WHERE t.state = 'leased'
		AND r.pid = $1`
	relaytest.Eventually(t, 20*time.Second, "the relay is busy", func() bool {
		return db.Int(t, held, killed.Pid) > workers/2
	})
	killed.Kill9()
	at := db.Text(t, `SELECT clock_timestamp()`)
	lost := db.Int(t, held, killed.Pid)
	db.Do(t, `CREATE TABLE lease (at timestamptz NOT NULL DEFAULT clock_timestamp());
		CREATE FUNCTION note_lease() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO public.lease DEFAULT VALUES; RETURN NULL; END $$;
		CREATE TRIGGER note_lease AFTER UPDATE ON outbox.task FOR EACH STATEMENT EXECUTE FUNCTION note_lease()`)
	db.Emptied(t, 2*time.Minute)
	if n := db.Int(t, `SELECT count(*) FROM done`); n != 4*workers {
		t.Errorf("%d effects, want %d", n, 4*workers)
	}
	if n := db.Int(t, `SELECT count(*) FROM done WHERE attempt = 2`); lost == 0 || n != lost {
		t.Errorf("%d tasks were done in their second attempt, want the %d that were lost", n, lost)
	}
	within := int(upkeep.TakenOverWithin.Seconds())
	// The last UPDATE leases the last lost task, as the other tasks are done before.
	for what, c := range map[string]struct {
		query string
		more  int
	}{
		"the first, of 2 s, is done": {`SELECT min(at) FROM done WHERE attempt = 2`, 2},
		"the last runs":              {`SELECT max(at) FROM lease`, 5},
	} {
		if relaytest.Timing && db.Text(t, `SELECT (`+c.query+`) <= $1::timestamptz + $2 * interval '1 s'`, at,
			within+c.more) != "true" {
			t.Errorf("of %d lost tasks not within %d s of the death: %s", lost, within+c.more, what)
		}
	}
}
