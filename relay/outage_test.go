package relay_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/proxy"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/relay"
)

const (
	outageBegins = "PostgreSQL is unavailable"
	outageEnds   = "PostgreSQL is available again"
)

// starved is an outage that is the machine's: it held a statement up until its time limit.
var starved = regexp.MustCompile(outageBegins + `; the relay waits and tries again" ` +
	`error="[^"]*(context deadline exceeded|no heartbeat came through)"`)

// noOutage fails the test where another outage was logged.
func noOutage(t *testing.T, log string) {
	t.Helper()
	if others := starved.ReplaceAllString(log, ""); strings.Contains(others, outageBegins) {
		t.Errorf("an outage was logged:\n%s", others)
	}
}

// everyKind registers handlers whose effects are counted; the Leased one does not use the database,
// so that only the relay is disturbed.
func everyKind() *handlers.Registry {
	reg := handlers.New()
	registerTx(reg, typeTx, txEffect)
	handlers.Batch(reg, typeBatch, 20, batchEffect)
	handlers.Leased(reg, typeLeased, func(context.Context, *outbox.Task[payload]) error { return nil })
	return reg
}

// disturbed enqueues n tasks of each kind, runs disturb, and checks that all tasks ran, each once
// and in its first attempt: I3, I6.
func disturbed(t *testing.T, db *database, n int, disturb func()) {
	t.Helper()
	db.enqueueEach(t, n)
	disturb()
	db.Emptied(t, 5*time.Minute)
	db.want(t, 2*n, "effects", `SELECT count(*) FROM effect`)
	db.want(t, 2*n, "tasks with an effect in their first attempt", `SELECT count(DISTINCT task_id) FROM effect
		WHERE attempt = 1`)
	db.want(t, 0, "dead letters", `SELECT count(*) FROM outbox.dead_task`)
}

// reachable waits until the server answers this pool, which loses its dead connections by that.
func (db *database) reachable(t testing.TB) {
	t.Helper()
	eventually(t, 30*time.Second, "the server answers", func() bool { return db.Ping() == nil })
}

// C3: the server crashes or is shut down under load, and comes back. A relay that starts meanwhile
// waits for it. Health and observers tell of it.
func TestARelayWorksOnAfterTheServerStopped(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	for _, mode := range relaytest.Part([]string{"immediate", "fast"}, 1) {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Local(t, nil)
			db, h := adopt(t, server.URL()), &heard{}
			r := prepare(t, open(t, db.URL), everyKind(), relay.Config{ListenDSN: db.URL, Observers: h.observers()})
			if err := r.Health(); !errors.Is(err, relay.ErrNotRunning) {
				t.Errorf("before Run: %v, want ErrNotRunning", err)
			}
			r.Start()
			eventually(t, 10*time.Second, "it is healthy", func() bool { return r.Health() == nil })
			disturbed(t, db, 200, func() {
				eventually(t, 30*time.Second, "the relay works", func() bool {
					return db.Int(t, `SELECT count(*) FROM outbox.task`) < 500
				})
				noErr(t, server.Stop(mode))
				eventually(t, 10*time.Second, "the relay says that the server is gone", func() bool {
					return r.Log.Count(outageBegins) == 1
				})
				// It has none of the first one's tasks: another relay counts their runs as attempts
				// until the first one has marked them as lost connections.
				others := handlers.New()
				registerTx(others, outbox.NewTaskType[payload]("OTHERS"), txEffect)
				late := run(t, open(t, db.URL), others, relay.Config{})
				eventually(t, 10*time.Second, "a new relay says that there is no server", func() bool {
					return late.Log.Count(outageBegins) == 1
				})
				if err := r.Health(); !errors.Is(err, relay.ErrOutage) ||
					!strings.Contains(err.Error(), " since "+time.Now().UTC().Format("2006-01-02")) {
					t.Errorf("Health: %v, want ErrOutage and since when", err)
				}
				noErr(t, server.Start(context.Background()))
				db.reachable(t)
				eventually(t, 20*time.Second, "the relays say that the server is back", func() bool {
					return r.Log.Count(outageEnds) == 1 && late.Log.Count(outageEnds) == 1 && r.Health() == nil
				})
			})
			r.Stop()
			if err := r.Health(); !errors.Is(err, relay.ErrNotRunning) {
				t.Errorf("after Run: %v, want ErrNotRunning", err)
			}
			if got, want := h.events(), []relay.Event{relay.EventStarted, relay.EventOutageBegan, relay.EventOutageEnded,
				relay.EventStopped}; !slices.Equal(got, want) {
				t.Errorf("observers heard %v, want %v", got, want)
			}
		})
	}
}

// role is a login of the test's own with settings, as a DBA gives it to an app; app is a pool of
// it.
func role(t testing.TB, with string, settings ...string) (owner, app *database) {
	t.Helper()
	owner = newDatabase(t)
	name := "app_of_" + owner.Text(t, `SELECT current_database()`)
	owner.Do(t, `CREATE ROLE `+name+` LOGIN PASSWORD 'of the test' `+with)
	t.Cleanup(func() { owner.Do(t, `DROP OWNED BY `+name+`; DROP ROLE `+name) })
	owner.Do(t, strings.ReplaceAll(`GRANT USAGE ON SCHEMA outbox TO app; GRANT ALL ON ALL TABLES IN SCHEMA outbox, public TO app;
		GRANT ALL ON ALL SEQUENCES IN SCHEMA outbox TO app`, "TO app", "TO "+name))
	for _, setting := range settings {
		owner.Do(t, `ALTER ROLE `+name+` SET `+setting)
	}
	return owner, open(t, as(t, owner.URL, name, "of the test"))
}

// F39: settings that a DBA may give the role. transaction_timeout, of version 17, ends a
// transaction and its connection, whatever they do.
func testTimeoutsOfTheRole(t *testing.T) {
	settings := []string{"statement_timeout = '1s'", "lock_timeout = '1s'",
		"idle_in_transaction_session_timeout = '1s'",
		"idle_session_timeout = '1s'"}
	if open(t, pgtest.Server(t).URL()).Text(t, `SELECT current_setting('transaction_timeout', true)`) != "" {
		settings = append(settings, "transaction_timeout = '1s'")
	}
	owner, app := role(t, "", settings...)
	reg := everyKind()
	slow := []string{"tx", "batch", "complete"}
	for _, kind := range slow {
		relaytest.Register(reg, kind, kind, 2,
			func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
				<-time.After(1500 * time.Millisecond) // idle in its transaction
				return errors.Join(execs(nil, `SELECT pg_sleep(1.5)`)(ctx, tx),
					effect(ctx, tx, tasks[0].ID, tasks[0].Attempt))
			})
	}
	r := run(t, app, reg, relay.Config{ListenDSN: app.URL})
	disturbed(t, owner, 150, func() {})
	for _, kind := range slow {
		owner.Enqueue(t, kind, 1)
	}
	owner.Emptied(t, 30*time.Second)
	<-time.After(1300 * time.Millisecond) // in which all connections are idle for long
	owner.Enqueue(t, "TX", 1)
	owner.Emptied(t, 20*time.Second)
	owner.want(t, 304, "effects in the first attempt", `SELECT count(*) FROM effect WHERE attempt = 1`)
	noOutage(t, r.Log.String())
}

// C11: twenty workers and the relay's own connections share what is left of six.
func TestARelayWorksWithFewConnections(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	owner, app := role(t, "CONNECTION LIMIT 6")
	r := run(t, app, everyKind(), relay.Config{Workers: 20, ListenDSN: app.URL})
	disturbed(t, owner, 300, func() {})
	noOutage(t, r.Log.String())
	r.Log.Want(t, 1, "fewer work for now")
}

// F27: as on a primary that became a standby.
func TestAReadOnlyServerIsAnOutageThatEnds(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	server := pgtest.Local(t, nil)
	db := adopt(t, server.URL())
	app := open(t, db.URL)
	r := run(t, app, everyKind(), relay.Config{PollInterval: 100 * time.Millisecond})
	disturbed(t, db, 200, func() {
		eventually(t, 20*time.Second, "the relay works", func() bool {
			return db.Int(t, `SELECT count(*) FROM outbox.task`) < 500
		})
		db.Do(t, `ALTER SYSTEM SET default_transaction_read_only = on`)
		db.Do(t, `SELECT pg_reload_conf()`)
		eventually(t, 20*time.Second, "the relay says so", func() bool { return r.Log.Count(outageBegins) > 0 })
		db.Do(t, `ALTER SYSTEM RESET default_transaction_read_only`) // is no transaction's write
		db.Do(t, `SELECT pg_reload_conf()`)
	})
	// Each backend takes the setting over when it likes, so it may begin and end a few times.
	if begins, ends := r.Log.Count(outageBegins), r.Log.Count(outageEnds); begins != ends || begins > 5 {
		t.Errorf("%d outages were logged to begin and %d to end, want 1 or a few", begins, ends)
	}
}

// closing makes connections that have a name, or while it is closed none: with a SQLSTATE.
type closing struct {
	driver.Connector
	code atomic.Pointer[string]
}

func (c *closing) Connect(ctx context.Context) (driver.Conn, error) {
	if code := c.code.Load(); code != nil {
		//lint:ignore SA1019 the lib/pq of go.mod has no other name for the type
		return nil, &pq.Error{Severity: "FATAL", Code: pq.ErrorCode(*code), Message: "no connections now"}
	}
	return c.Connector.Connect(ctx)
}

// close ends the connections, and makes none any more.
func (c *closing) close(t *testing.T, db *database, code string) {
	c.code.Store(&code)
	db.Do(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'closing'
		AND datname = current_database()`)
}

// Whatever prevents a new connection costs no attempt. Waiting mends a server that starts (57P03).
// It mends no revoked right to connect (42501), no database that takes no connections (55000) or
// was renamed (3D000), and no wrong password.
func TestWhateverPreventsAConnectionIsNamedAndCostsNoAttempt(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for code, want := range map[string]struct {
		is   error
		says string
		log  string
	}{
		"57P03": {relay.ErrOutage, "", outageBegins},
		"42501": {relay.ErrRefused, "GRANT CONNECT ON DATABASE", "refuses what the relay needs"},
		"55000": {relay.ErrRefused, "takes no connections", "refuses what the relay needs"},
		"3D000": {relay.ErrRefused, "does not exist", "refuses what the relay needs"},
		"28P01": {relay.ErrRefused, "refuses the login of the role", "refuses what the relay needs"},
	} {
		tests[code] = func(t *testing.T) {
			db := newDatabase(t)
			to := &closing{Connector: connector(t, "postgres", db.URL+"&application_name=closing")}
			pool := sql.OpenDB(to)
			t.Cleanup(func() { pool.Close() })
			began, extend, runs := make(chan bool), make(chan bool), atomic.Int64{}
			r := relaytest.Run(t, pool, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
				if runs.Add(1) > 1 {
					return nil
				}
				close(began)
				<-extend
				err := task.Extend(ctx, time.Minute)
				to.code.Store(nil)
				return err
			}, handlers.MaxAttempts(1), retrySoon()), relay.Config{Workers: 2, PollInterval: 50 * time.Millisecond})
			db.Enqueue(t, "LEASED", 1)
			<-began
			to.close(t, db, code)
			eventually(t, 20*time.Second, "an error of Health", func() bool { return errors.Is(r.Health(), want.is) })
			if err := r.Health(); !strings.Contains(err.Error(), want.says) {
				t.Errorf("Health: %v, want %q", err, want.says)
			}
			close(extend)
			db.Emptied(t, 30*time.Second)
			db.want(t, 0, "dead letters", `SELECT count(*) FROM outbox.dead_task`)
			r.Log.Want(t, 0, "cannot be claimed or recorded")
			r.Log.Want(t, 1, want.log)
		}
	}
	relaytest.Together(t, needs.Few(t, tests, "57P03", "42501", "28P01"))
}

const (
	noWakeUps    = "no wake-ups by LISTEN"
	wakeUpsAgain = "wake-ups by LISTEN work again"
)

// A password that is rotated ends LISTEN until the relay knows the next one.
func TestListenGoesOnWithARotatedPassword(t *testing.T) {
	t.Parallel()
	db := adopt(t, pgtest.Local(t, nil).URL()) // it asks for passwords
	db.Do(t, `CREATE ROLE listener LOGIN PASSWORD 'C4n4ry-1'`)
	var password atomic.Value
	password.Store("C4n4ry-1")
	r := run(t, open(t, db.URL), all(), relay.Config{PollInterval: time.Minute,
		ListenDSNFunc: func(context.Context) (string,
			error) {
			return as(t, db.URL, "listener", password.Load().(string)), nil
		}})
	listening(t, db)
	db.Do(t, `ALTER ROLE listener PASSWORD 'C4n4ry-2'`)
	db.Do(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'listener'`)
	eventually(t, 20*time.Second, "the relay warns", func() bool { return r.Log.Count(noWakeUps) == 1 })
	noErr(t, r.Health()) // it polls
	r.Log.Want(t, 1, "password authentication failed")
	password.Store("C4n4ry-2")
	eventually(t, 20*time.Second, "LISTEN works with the new password",
		func() bool { return r.Log.Count(wakeUpsAgain) == 1 })
	r.Log.Want(t, 0, "C4n4ry")
}

// If the function fails in any way, the relay warns without any text that may be a connection string,
// and asks again.
func TestAFunctionForTheDSNThatFailsIsAskedAgain(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	tests := map[string]func(*testing.T){}
	for reason, fails := range map[string]func() (string, error){
		"the vault is sealed":    func() (string, error) { return "", errors.New("the vault is sealed") },
		"the error is not shown": func() (string, error) { return "", errors.New("postgres://app:C4n4ry@host/app") },
		"its text is not shown":  func() (string, error) { return "password=a C4n4ry", nil },
		"panic: no vault":        func() (string, error) { panic("no vault") },
		"ended the goroutine":    func() (string, error) { runtime.Goexit(); return "", nil },
	} {
		tests[reason] = func(t *testing.T) {
			var well atomic.Bool
			r := run(t, open(t, db.URL), all(), relay.Config{ListenDSNFunc: func(context.Context) (string, error) {
				if well.Load() {
					return db.URL, nil
				}
				return fails()
			}})
			eventually(t, 20*time.Second, "the relay warns", func() bool { return r.Log.Count(noWakeUps) == 1 })
			r.Log.Want(t, 1, reason)
			well.Store(true)
			eventually(t, 20*time.Second, "LISTEN works", func() bool { return r.Log.Count(wakeUpsAgain) == 1 })
			r.Log.Want(t, 0, "C4n4ry")
		}
	}
	relaytest.Together(t, tests)
}

// The relay starts, polls and stops beside a function that does not return, of which it calls one.
func TestAFunctionForTheDSNThatHangsHoldsUpNothing(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	var calls atomic.Int64
	release := make(chan struct{})
	defer close(release)
	r := run(t, open(t, db.URL), all(), relay.Config{PollInterval: 50 * time.Millisecond,
		ListenDSNFunc: func(context.Context) (string, error) {
			calls.Add(1)
			<-release
			return db.URL, nil
		}})
	r.Leaves("TestAFunctionForTheDSNThatHangsHoldsUpNothing")
	db.Enqueue(t, "TX", 1)
	db.Emptied(t, 20*time.Second)
	eventually(t, 40*time.Second, "the relay warns", func() bool { return r.Log.Count("did not return") == 1 })
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
	r.Stop()
}

// F24, C6. A relay with one worker works again within 45 s after one of its connections has fallen
// silent, whatever was said on it last. (LISTEN has a watch of its own.)
func TestASilentConnectionCostsAWorkerLessThan45Seconds(t *testing.T) {
	needs.Timing(t)
	t.Parallel()
	end := proxy.Commit("INSERT INTO effect")
	for name, c := range map[string]struct {
		kind string
		at   func(statement, before string) bool
	}{
		"begin":           {"tx", proxy.Statement("BEGIN")},
		"claim":           {"tx", proxy.Statement("outbox: claim")},
		"journal":         {"tx", proxy.Statement("outbox: journal runs")},
		"handler":         {"tx", proxy.Statement("INSERT INTO effect")},
		"end":             {"tx", proxy.Statement("SET CONSTRAINTS ALL IMMEDIATE")},
		"commit":          {"tx", end},
		"poll":            {"tx", proxy.Statement("outbox: poll")},
		"batch committed": {"batch", end},
		"lease":           {"complete", proxy.Statement("outbox: lease")},
		"lease committed": {"complete", proxy.Commit("outbox: lease")},
		"heartbeat":       {"complete", proxy.Statement("outbox: heartbeat")},
		"complete":        {"complete", end},
	} {
		for _, how := range []proxy.How{proxy.SilenceRequest, proxy.SilenceReply} {
			t.Run(name+map[proxy.How]string{proxy.SilenceRequest: ", request", proxy.SilenceReply: ", reply"}[how],
				func(t *testing.T) {
					t.Parallel()
					db := newDatabase(t, "postgres")
					p, url := relaytest.Through(t, db.URL)
					pool, err := pgdb.Open(url)
					noErr(t, err)
					t.Cleanup(func() { pool.Close() })
					reg := handlers.New()
					relaytest.Register(reg, c.kind, "SILENT", 10,
						func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
							for _, task := range tasks {
								if err := effect(ctx, tx, task.ID, task.Attempt); err != nil {
									return err
								}
							}
							return nil
						}, handlers.Timeout(10*time.Second))
					run(t, &database{&relaytest.Database{DB: pool, URL: db.URL}}, reg,
						relay.Config{Workers: 1, PollInterval: 100 * time.Millisecond})
					db.Enqueue(t, "SILENT", 1)
					db.Emptied(t, 20*time.Second)
					caught := make(chan struct{})
					p.Set(&proxy.Trap{Catches: c.at, How: how, Then: func() { close(caught) }})
					db.Enqueue(t, "SILENT", 1)
					<-caught
					fell := time.Now()
					db.Enqueue(t, "SILENT", 3)
					db.Emptied(t, 60*time.Second)
					if took := time.Since(fell); took > 45*time.Second {
						t.Errorf("the tasks were done %v after the silence began, want 45 s", took)
					}
					db.OnceEach(t, 5)
					db.becomes(t, 20*time.Second, 1, "the relay's heartbeat goes on", `SELECT count(*) FROM outbox.relay
					WHERE alive_until > $1::timestamptz + interval '15 s'`, fell.Format(time.RFC3339Nano))
				})
		}
	}
}
