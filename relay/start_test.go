package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

func TestARelayRefusesASchemaThatItsCodeDoesNotKnow(t *testing.T) {
	t.Parallel()
	version := strconv.Itoa(schema.Version())
	for _, c := range []struct {
		name, change string
		want         error
		text         string
	}{
		{"missing", `DROP SCHEMA outbox CASCADE`, schema.ErrNotMigrated,
			`schema: the outbox is not migrated: the schema "outbox" is at version 0, this code needs ` + version + `: run schema.Migrate`},
		{"older", `DELETE FROM outbox.migration`, schema.ErrNotMigrated,
			`schema: the outbox is not migrated: the schema "outbox" is at version 0, this code needs ` + version + `: run schema.Migrate`},
		{"newer", `INSERT INTO outbox.migration (version) VALUES (77)`, schema.ErrNewer,
			`schema: the outbox is newer than this code: the schema "outbox" is at version 77, this code knows ` + version + `: upgrade the module`},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := open(t, pgtest.Database(t))
			if err := schema.Migrate(t.Context(), db.DB); err != nil {
				t.Fatal(err)
			}
			db.Do(t, c.change)
			r, err := relay.New(db.DB, all(), relay.Config{Logger: discard()})
			if err != nil {
				t.Fatal(err)
			}
			for name, run := range map[string]func(context.Context) error{"Run": r.Run, "RunOnce": r.RunOnce} {
				if err := run(t.Context()); !errors.Is(err, c.want) || err.Error() != c.text {
					t.Errorf("%s: got error %v, want %s", name, err, c.text)
				}
			}
			if n := db.Stats().InUse; n != 0 {
				t.Errorf("%d connections are in use after that", n)
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
		{all(), relay.Config{Schema: "Outbox"}, `relay: Config.Schema: "Outbox": use a lower-case name like outbox: letters, digits and _ only, at most 63 bytes`},
		{all(), relay.Config{Workers: -1}, "relay: Config.Workers: -1: must be between 1 and 1000, or 0 for 10"},
		{all(), relay.Config{Workers: 1001}, "relay: Config.Workers: 1001: must be between 1 and 1000, or 0 for 10"},
		{all(), relay.Config{Order: 2}, "relay: Config.Order: 2: must be InOrder or Random"},
		{all(), relay.Config{Order: -1}, "relay: Config.Order: -1: must be InOrder or Random"},
		{all(), relay.Config{PollInterval: time.Millisecond}, "relay: Config.PollInterval: 1ms: must be between 10ms and 1m, or 0 for 1s"},
		{all(), relay.Config{PollInterval: -time.Second}, "relay: Config.PollInterval: -1s: must be between 10ms and 1m, or 0 for 1s"},
		{all(), relay.Config{PollInterval: time.Hour}, "relay: Config.PollInterval: 1h0m0s: must be between 10ms and 1m, or 0 for 1s"},
		{handlers.New(), relay.Config{}, "relay: the registry has no handler: register the handlers before relay.New"},
		{handlers.New(), relay.Config{Workers: -3, Order: 9}, "relay: Config.Workers: -3: must be between 1 and 1000, or 0 for 10\n" +
			"relay: Config.Order: 9: must be InOrder or Random\nrelay: the registry has no handler: register the handlers before relay.New"},
		{all(), relay.Config{ListenDSN: "postgres://app:hunter2@localhost:port/app"}, "relay: Config.ListenDSN is not a connection string of lib/pq (its text is not shown)"},
		{all(), relay.Config{ListenDSN: "host=localhost password=hunter2 sslmode"}, "relay: Config.ListenDSN is not a connection string of lib/pq (its text is not shown)"},
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
	for _, c := range []struct{ limit, workers int }{{6, 5}, {1, 1}, {11, 0}} {
		db.SetMaxOpenConns(c.limit)
		workers := c.workers
		if workers == 0 {
			workers = 10
		}
		want := fmt.Sprintf("relay: the pool is limited to %d connections (SetMaxOpenConns), but %d workers need %d: each may hold one, and the relay two", c.limit, workers, workers+2)
		if _, err := relay.New(db.DB, all(), relay.Config{Workers: c.workers}); err == nil || err.Error() != want {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
}

// With the smallest pool that is accepted nothing waits for ever: not the relay's own loops, nor what handlers do through
// their tasks.
func TestAPoolOfWorkersAndTwoIsEnough(t *testing.T) {
	needs.Long(t)
	for _, workers := range []int{1, 3} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			pool := open(t, db.URL)
			pool.SetMaxOpenConns(workers + 2)
			for _, kind := range []string{"TX", "BATCH", "LEASED"} {
				db.Enqueue(t, kind, 100)
			}
			run(t, pool, all(), relay.Config{Workers: workers, ListenDSN: db.URL})
			db.Emptied(t, 30*time.Second)
			if n := db.Int(t, `SELECT count(DISTINCT task_id) FROM effect WHERE attempt = 1`); n != 300 {
				t.Errorf("effects of %d tasks, want 300", n)
			}
		})
	}
}

func TestARelayRunsOnceAtATimeAndAsOftenAsOneLikes(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	started, end := make(chan struct{}), make(chan struct{})
	reg := handlers.New()
	handlers.Tx(reg, typeTx, func(context.Context, *sql.Tx, *outbox.Task[payload]) error {
		started <- struct{}{}
		<-end
		return nil
	})
	r := run(t, db, reg, relay.Config{})
	db.Enqueue(t, "TX", 1)
	<-started
	for name, again := range map[string]func(context.Context) error{"Run": r.Run, "RunOnce": r.RunOnce} {
		if err := again(t.Context()); !errors.Is(err, relay.ErrRunning) {
			t.Errorf("%s of a relay that runs: got error %v, want ErrRunning", name, err)
		}
	}
	close(end)
	r.Stop()
	for range 3 {
		db.Enqueue(t, "TX", 1)
		var wg sync.WaitGroup
		wg.Go(func() { <-started })
		if err := r.RunOnce(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.task`); n != 0 {
		t.Errorf("%d tasks are left", n)
	}
}

// A relay that is idle leaves the connections to others: it keeps the one of its heartbeat and that of its journal.
func TestAnIdleRelayHoldsTwoConnections(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	pool := open(t, db.URL)
	pool.SetMaxIdleConns(-1)
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		db.Enqueue(t, kind, 200)
	}
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
	if err := schema.Migrate(t.Context(), db.DB, schema.Schema(name)); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		db.Enqueue(t, kind, 3)
	}
	reg := all()
	handlers.Tx(reg, outbox.NewTaskType[payload]("BAD"), func(context.Context, *sql.Tx, *outbox.Task[payload]) error { return errAlways },
		handlers.MaxAttempts(2), handlers.Backoff(constant(50*time.Millisecond)))
	p := newProbe(reg, "PROBE")
	r := run(t, open(t, db.URL), reg, relay.Config{Schema: name, ListenDSN: db.URL, PollInterval: time.Minute, Order: relay.Random})
	eventually(t, 20*time.Second, "the relay requests wake-ups", func() bool { return db.Int(t, `SELECT last_value FROM "user".wake`) > 0 })
	for _, kind := range []string{"TX", "BATCH", "LEASED", "BAD", "UNKNOWN"} {
		db.Do(t, `INSERT INTO "user".task (task_type) SELECT $1 FROM generate_series(1, 50)`, kind)
	}
	eventually(t, 30*time.Second, "all tasks but those of an unknown type are done", func() bool {
		return db.Int(t, `SELECT count(*) FROM "user".task`) == 50
	})
	if n := db.Int(t, `SELECT count(*) FROM effect`); n != 150 {
		t.Errorf("%d effects, want 150", n)
	}
	if n := db.Int(t, `SELECT count(*) FROM "user".dead_task WHERE attempt = 2`); n != 50 {
		t.Errorf("%d dead letters, want 50", n)
	}
	begun := time.Now()
	err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
		_, err := outbox.Enqueue(t.Context(), tx, p.taskType, payload{}, outbox.Schema(name), outbox.After(300*time.Millisecond))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := (<-p.started).Sub(begun); d < 290*time.Millisecond {
		t.Errorf("a task due after 300 ms started after %v", d)
	}
	r.Stop()
	if n := db.Int(t, `SELECT count(*) FROM "user".running`); n != 0 {
		t.Errorf("%d runs are left in the journal", n)
	}
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		untouched(t, db, kind, 3)
	}
	db.Do(t, `TRUNCATE outbox.task`)
}

// Who starts a relay sees in the log that it works, with which handlers, and when it has stopped, OnDead included; RunOnce says nothing of it.
func TestTheLogSaysThatARelayStartedAndStopped(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	const started, stopped = `msg="outbox: relay started"`, `msg="outbox: relay stopped"`
	reg := all()
	handlers.Tx(reg, outbox.NewTaskType[payload]("DIES"), func(context.Context, *sql.Tx, *outbox.Task[payload]) error {
		return handlers.Dead(errors.New("boom"))
	})
	called, signedOff, told := make(chan struct{}), make(chan struct{}), make(chan int, 1)
	var r *running
	r = relaytest.Prepare(t, db.DB, reg, relay.Config{Workers: 3, OnDead: func(context.Context, relay.DeadLetter) {
		close(called)
		<-signedOff
		told <- r.Log.Count(stopped)
	}})
	r.Start()
	db.Enqueue(t, "DIES", 1)
	<-called
	if n, of := r.Log.Count(started), r.Log.Count(`schema=outbox workers=3 task_types="[BATCH DIES LEASED TX]"`); n != 1 || of != 1 {
		t.Errorf("a relay that works has logged %s", r.Log)
	}
	ended := make(chan struct{})
	go func() {
		r.Stop()
		close(ended)
	}()
	eventually(t, 10*time.Second, "the relay has signed off", func() bool { return db.Int(t, `SELECT count(*) FROM outbox.relay`) == 0 })
	close(signedOff)
	<-ended
	if early := <-told; early != 0 || r.Log.Count(stopped) != 1 {
		t.Errorf("it said that it has stopped %d times while OnDead was called, and %d times in all", early, r.Log.Count(stopped))
	}
	if log := relaytest.Once(t, db.DB, all(), relay.Config{}); strings.Contains(log, started) || strings.Contains(log, stopped) {
		t.Errorf("RunOnce logs %s", log)
	}
}

func TestARelayRefusesADatabaseThatIsNotInUTF8(t *testing.T) {
	t.Parallel()
	refused(t, open(t, pgtest.Encoded(t, "LATIN1")), schema.ErrUnsupportedEncoding, "has the encoding LATIN1, the outbox needs UTF8")
}

func TestARelayNamesTheSettingThatMakesTransactionsReadOnly(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `DO $$ BEGIN
		EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database());
	END $$`)
	for _, driver := range drivers {
		refused(t, direct(t, db.URL, driver), schema.ErrReadOnly, "default_transaction_read_only is on for the role")
	}
}

// refused fails unless a relay returns at once, with an error that has the text.
func refused(t *testing.T, db *database, want error, text string) {
	t.Helper()
	r, err := relay.New(db.DB, all(), relay.Config{Logger: discard()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for name, run := range map[string]func(context.Context) error{"Run": r.Run, "RunOnce": r.RunOnce} {
		if err := run(ctx); !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got error %v, want: %s", name, err, text)
		}
	}
}
