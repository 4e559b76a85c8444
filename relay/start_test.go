package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgbouncer"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

func TestARelayRefusesADatabaseThatItCannotWorkWith(t *testing.T) {
	t.Parallel()
	version := strconv.Itoa(schema.Version())
	for _, c := range []struct {
		name, change string
		want         error
		text         string
	}{
		{"missing", `DROP SCHEMA outbox CASCADE`, schema.ErrNotMigrated,
			`the schema "outbox" is at version 0, this code needs ` + version + `: run schema.Migrate`},
		{"older", `DELETE FROM outbox.migration`, schema.ErrNotMigrated,
			`the schema "outbox" is at version 0, this code needs ` + version + `: run schema.Migrate`},
		{"newer", `INSERT INTO outbox.migration (version) VALUES (77)`, schema.ErrNewer,
			`the schema "outbox" is at version 77, which needs code that knows version 77; this code knows ` + version +
				`: after a rollback run the newer code again, or do what its changelog says; else upgrade the module`},
		{"read-only", `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on',
			current_database()); END $$`,
			schema.ErrReadOnly, "default_transaction_read_only is on for the role"},
		{"not in UTF-8", "", schema.ErrUnsupportedEncoding, "has the encoding LATIN1, the outbox needs UTF8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			url := ""
			if c.change == "" {
				url = pgtest.Encoded(t, "LATIN1")
			} else {
				url = relaytest.Migrated(t)
				open(t, url).Do(t, c.change)
			}
			for _, driver := range drivers {
				db := direct(t, url, driver)
				for name, run := range map[string]func(*relay.Relay, context.Context) error{
					"Start": (*relay.Relay).Start, "Run": (*relay.Relay).Run, "RunOnce": (*relay.Relay).RunOnce,
				} {
					r := unstarted(t, db, all(), relay.Config{Logger: discard()})
					done := r.Done()
					if err := run(r, t.Context()); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
						t.Errorf("%s: got error %v, want %s", name, err, c.text)
					}
					<-done
				}
				if n := db.Stats().InUse; n != 0 {
					t.Errorf("%d connections are in use after that", n)
				}
			}
		})
	}
}

func TestNewNamesEachFieldThatIsOutOfRange(t *testing.T) {
	t.Parallel()
	db := open(t, pgtest.Database(t))
	for _, c := range []struct {
		registry *handlers.Registry
		config   relay.Config
		want     string
	}{
		{all(), relay.Config{Schema: "Outbox"},
			`relay: Config.Schema: "Outbox": use a lower-case name like outbox: letters, digits and _ only, no digit and no pg_ first, at most 63 bytes`},
		{all(), relay.Config{Workers: -1}, "relay: Config.Workers: -1: must be between 1 and 1000, or 0 for 10"},
		{all(), relay.Config{Workers: 1001}, "relay: Config.Workers: 1001: must be between 1 and 1000, or 0 for 10"},
		{all(), relay.Config{Order: "fifo"}, `relay: Config.Order: "fifo": must be OrderEnqueued or OrderRandom`},
		{all(), relay.Config{PollInterval: time.Millisecond},
			"relay: Config.PollInterval: 1ms: must be between 10ms and 1m, or 0 for 1s"},
		{all(), relay.Config{DeadRetention: -1},
			"relay: Config.DeadRetention: -1ns: must not be negative; 0 keeps dead letters for ever"},
		{all(), relay.Config{PollInterval: time.Hour},
			"relay: Config.PollInterval: 1h0m0s: must be between 10ms and 1m, or 0 for 1s"},
		{handlers.New(), relay.Config{Workers: -3, Order: "RANDOM"},
			"relay: Config.Workers: -3: must be between 1 and 1000, or 0 for 10\n" +
				"relay: Config.Order: \"RANDOM\": must be OrderEnqueued or OrderRandom\nrelay: the registry has no handler: register the handlers before relay.New"},
		{all(), relay.Config{ListenDSN: "postgres://app:hunter2@localhost:port/app"},
			"relay: Config.ListenDSN is not a connection string of lib/pq (its text is not shown)"},
		{all(), relay.Config{ListenDSN: "host=localhost",
			ListenDSNFunc: func(context.Context) (string, error) { return "", nil }},
			"relay: Config.ListenDSN and Config.ListenDSNFunc are both set: set one of them"},
		{nil, relay.Config{}, "relay: New needs a *sql.DB and a *handlers.Registry, not nil"},
	} {
		if _, err := relay.New(db.DB, c.registry, c.config); err == nil || err.Error() != c.want {
			t.Errorf("got error %v, want %s", err, c.want)
		}
	}
	if _, err := relay.New(nil, all(), relay.Config{}); err == nil {
		t.Error("a nil *sql.DB is accepted")
	}
}

// F35.
func TestAPoolThatIsTooSmallForTheWorkersIsRefused(t *testing.T) {
	t.Parallel()
	db := open(t, pgtest.Database(t))
	for _, c := range []struct {
		reg            *handlers.Registry
		limit, workers int
		want           string
	}{
		{all(), 6, 5, "limited to 6 connections (SetMaxOpenConns), but 5 workers need 7: each may hold one, and the relay two"},
		{all(), 1, 1, "1 workers need 3"},
		{all(), 11, 0, "10 workers need 12"},
		{leased(leasedEffect), 11, 200, "need 12"},
	} {
		db.SetMaxOpenConns(c.limit)
		if _, err := relay.New(db.DB, c.reg, relay.Config{Workers: c.workers}); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("got error %v, want %s", err, c.want)
		}
	}
}

// With the smallest pool that is accepted nothing waits for ever: not the relay's own loops, nor
// what handlers do through their tasks.
func TestTheSmallestPoolThatIsAcceptedIsEnough(t *testing.T) {
	needs.Long(t)
	for name, c := range map[string]struct {
		reg            *handlers.Registry
		workers, limit int
		kinds          []string
	}{
		"one worker":    {all(), 1, 3, []string{"TX", "BATCH", "LEASED"}},
		"three workers": {all(), 3, 5, []string{"TX", "BATCH", "LEASED"}},
		"Leased alone":  {leased(leasedEffect), 200, 12, []string{"LEASED"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			pool := open(t, db.URL)
			pool.SetMaxOpenConns(c.limit)
			for _, kind := range c.kinds {
				db.Enqueue(t, kind, 600/len(c.kinds))
			}
			run(t, pool, c.reg, relay.Config{Workers: c.workers, ListenDSN: db.URL})
			db.Emptied(t, 30*time.Second)
			db.want(t, 600, "tasks with an effect", `SELECT count(DISTINCT task_id) FROM effect WHERE attempt = 1`)
		})
	}
}

// A relay that is idle leaves the connections to others: it keeps the one of its heartbeat and that
// of its journal.
func TestAnIdleRelayHoldsTwoConnections(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	pool := open(t, db.URL)
	pool.SetMaxIdleConns(-1)
	db.enqueueEach(t, 200)
	r := run(t, pool, all(), relay.Config{PollInterval: 100 * time.Millisecond})
	db.Emptied(t, 30*time.Second)
	for range 3 {
		eventually(t, 20*time.Second, "two connections are open", func() bool { return pool.Stats().OpenConnections == 2 })
	}
	r.Stop()
	if n := pool.Stats().OpenConnections; n != 0 {
		t.Errorf("%d connections are open after Run", n)
	}
}

// Everything works in a schema of another name, beside an outbox that is not touched.
func TestAnOutboxOfAnotherName(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	const name = "user" // a reserved word
	noErr(t, schema.Migrate(t.Context(), db.DB, schema.Schema(name)))
	db.enqueueEach(t, 3)
	reg := all()
	registerTx(reg, outbox.NewTaskType[payload]("BAD"), func(context.Context, *sql.Tx, *outbox.Task[payload]) error {
		return errAlways
	},
		handlers.MaxAttempts(2), retrySoon())
	p := newProbe(reg, "PROBE")
	r := run(t, open(t, db.URL),
		reg, relay.Config{Schema: name, ListenDSN: db.URL, PollInterval: time.Minute, Order: relay.OrderRandom})
	eventually(t, 20*time.Second, "the relay requests wake-ups", func() bool {
		return db.Int(t, `SELECT last_value FROM "user".wake`) > 0
	})
	for _, kind := range []string{"TX", "BATCH", "LEASED", "BAD", "UNKNOWN"} {
		db.Do(t, `INSERT INTO "user".task (task_type) SELECT $1 FROM generate_series(1, 50)`, kind)
	}
	db.becomes(t, 30*time.Second, 50, "all tasks but those of an unknown type are done",
		`SELECT count(*) FROM "user".task`)
	db.want(t, 150, "effects", `SELECT count(*) FROM effect`)
	db.want(t, 50, "dead letters", `SELECT count(*) FROM "user".dead_task WHERE attempt = 2`)
	db.inTx(t, func(tx *sql.Tx) error {
		_, err := outbox.Enqueue(t.Context(), tx, p.taskType, payload{}, outbox.Schema(name),
			outbox.After(300*time.Millisecond))
		return err
	})
	<-p.started
	r.Stop()
	db.want(t, 0, "runs are left in the journal", `SELECT count(*) FROM "user".running`)
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		untouched(t, db, kind, 3)
	}
	db.Do(t, `TRUNCATE outbox.task`)
}

// What a relay may use at most is in its row.
func TestARelaysRowSaysWhatItMayUse(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	any, bounded := open(t, db.URL), open(t, db.URL)
	bounded.SetMaxOpenConns(17)
	run(t, any, all(), relay.Config{Workers: 3})
	run(t, bounded, all(), relay.Config{Workers: 10})
	db.becomes(t, 20*time.Second, 2, "both relays beat", `SELECT count(*) FROM outbox.relay`)
	relays, err := relaytest.Admin(t, db.DB).Relays(t.Context())
	noErr(t, err)
	got := map[int]int{}
	for _, r := range relays {
		got[r.Workers] = r.Connections
	}
	if len(got) != 2 || got[3] != 0 || got[10] != 17 {
		t.Errorf("got %v, want 3 workers and any number of connections, 10 and 17", got)
	}
}

// A replica of the old code restarts after each of two migrations.
func TestARelayStartsBesideANewerSchemaThatAllowsIt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for n := 1; n <= 2; n++ {
		db.Do(t, `INSERT INTO outbox.migration (version, oldest_version) VALUES ($1, $2)`, schema.Version()+n,
			schema.Version())
		db.Enqueue(t, "TX", 1)
		said := relaytest.Once(t, db.DB, all(), relay.Config{})
		want := fmt.Sprintf(`level=INFO msg="outbox: the schema is newer than this code, which may run beside it" `+
			`schema_version=%d code_version=%d`, schema.Version()+n, schema.Version())
		if got := strings.Count(said, want); got != 1 {
			t.Errorf("%d records of %s, want 1:\n%s", got, want, said)
		}
		db.Emptied(t, 0)
	}
}

func TestARelayWarnsOfAServerThatIsNewerThanTheTestedOnes(t *testing.T) {
	t.Parallel()
	address := pgtest.Database(t)
	db := adopt(t, address)
	// The relay finds this function before PostgreSQL's own.
	db.Do(t, `CREATE SCHEMA future`)
	db.Do(t, `CREATE FUNCTION future.current_setting(name text) RETURNS text LANGUAGE sql STABLE RETURN
		CASE name WHEN 'server_version_num' THEN '190001'
		WHEN 'server_version' THEN '19.1' ELSE pg_catalog.current_setting(name) END`)
	later := direct(t, address+"&search_path=future,pg_catalog,public")
	later.Enqueue(t, "TX", 1)
	said := relaytest.Once(t, later.DB, all(), relay.Config{})
	if n := strings.Count(said, `level=WARN msg="outbox: this PostgreSQL is newer than the versions that the outbox `+
		`was tested with" server_version=19.1`); n != 1 {
		t.Errorf("%d warnings, want 1:\n%s", n, said)
	}
	db.Emptied(t, 0)
}

func TestPgBouncerInStatementModeIsRefusedWithASentence(t *testing.T) {
	t.Parallel()
	needs.Program(t, "pgbouncer", "pgbouncer")
	address := relaytest.Migrated(t)
	u, err := url.Parse(address)
	must(err)
	pooler, err := pgbouncer.Start(t.Context(), u, pgbouncer.Mode("statement"))
	must(err)
	defer pooler.Close()
	for driver, parameter := range map[string]string{"postgres": "binary_parameters=yes",
		"pgx": "default_query_exec_mode=exec"} {
		db := direct(t, pooler.URL(u).String()+"&"+parameter, driver)
		r := unstarted(t, db, all(), relay.Config{Logger: discard()})
		_, ofDoctor := doctor.Check(t.Context(), db.DB)
		for call, err := range map[string]error{
			"Run": r.Run(t.Context()), "RunOnce": r.RunOnce(t.Context()), "doctor": ofDoctor,
			"Migrate": schema.Migrate(t.Context(), db.DB), "GrantRoles": schema.GrantRoles(t.Context(), db.DB),
			"Check": schema.Check(t.Context(), db.DB),
		} {
			if !errors.Is(err, schema.ErrStatementPooling) ||
				!strings.Contains(err.Error(), "set pool_mode to transaction or session") ||
				strings.Count(err.Error(), "schema: ") > 1 {
				t.Errorf("%s, %s: got %v, want ErrStatementPooling", driver, call, err)
			}
		}
	}
}

// A hosting service's linter asks for row level security. Without policies it hides all rows from all
// but the owner, so there seems to be no task, or no outbox.
func TestARelayThatSeesNoRowsSaysSo(t *testing.T) {
	t.Parallel()
	db, app := role(t, "")
	role := app.Text(t, `SELECT current_user`)
	refused := func(table string) {
		t.Helper()
		r := unstarted(t, app, all(), relay.Config{Logger: discard()})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := r.Run(ctx)
		if !errors.Is(err, schema.ErrRowSecurity) {
			t.Errorf("%s: Run returned %v", table, err)
			return
		}
		for _, part := range []string{"hides rows of outbox." + table, `"` + role + `"`,
			"ALTER TABLE outbox." + table + " DISABLE ROW LEVEL SECURITY", "CREATE POLICY outbox ON outbox." + table + " TO"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: the error lacks %q: %v", table, part, err)
			}
		}
		if errors.Is(err, schema.ErrNotMigrated) {
			t.Errorf("%s: %v", table, err)
		}
	}
	for _, table := range []string{"task", "migration"} {
		db.Do(t, `ALTER TABLE outbox.`+table+` ENABLE ROW LEVEL SECURITY`)
		refused(table)
		if table == "migration" {
			for name, err := range map[string]error{"Migrate": schema.Migrate(t.Context(), app.DB),
				"Check": schema.Check(t.Context(), app.DB)} {
				if !errors.Is(err, schema.ErrRowSecurity) {
					t.Errorf("%s: got %v", name, err)
				}
			}
		}
		// What the error says is what helps; one policy, for reading alone, is too little.
		db.Do(t, `CREATE POLICY reads ON outbox.`+table+` FOR SELECT TO PUBLIC USING (true)`)
		if table == "task" {
			refused(table)
			err := outbox.InTx(t.Context(), app.DB, func(tx *sql.Tx) error {
				_, err := outbox.Enqueue(t.Context(), tx, typeTx.Name(), payload{})
				return err
			})
			if err == nil || !strings.Contains(err.Error(), `row-level security policy for table "task"`) {
				t.Errorf("Enqueue: got %v", err)
			}
		}
		db.Do(t, `CREATE POLICY outbox ON outbox.`+table+` TO `+role+` USING (true) WITH CHECK (true)`)
	}
	r := run(t, app, all(), relay.Config{PollInterval: 50 * time.Millisecond})
	db.Enqueue(t, typeTx.Name(), 1)
	db.Emptied(t, 20*time.Second)

	// It is switched on beside a relay at work, for all tables.
	db.Do(t, `DROP POLICY outbox ON outbox.task; ALTER TABLE outbox.relay ENABLE ROW LEVEL SECURITY`)
	eventually(t, 30*time.Second, "the relay is not healthy", func() bool {
		return errors.Is(r.Health(), schema.ErrRowSecurity)
	})
	if err := r.Health(); !strings.Contains(err.Error(), "hides rows of outbox.relay") ||
		!strings.Contains(err.Error(), "likewise for task") {
		t.Errorf("Health: %v", err)
	}
	eventually(t, 30*time.Second, "the log says so", func() bool {
		return r.Log.Count("the relay does not see all tasks") == 1
	})
	db.Do(t, `ALTER TABLE outbox.relay DISABLE ROW LEVEL SECURITY; ALTER TABLE outbox.task DISABLE ROW LEVEL SECURITY`)
	eventually(t, 30*time.Second, "the relay is healthy again", func() bool { return r.Health() == nil })
}
