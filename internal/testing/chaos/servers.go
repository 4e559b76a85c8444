//go:build unix

package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/lib/pq"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/txoutbox/outbox/internal/testing/chaos/app"
	"github.com/txoutbox/outbox/internal/testing/devpg"
	"github.com/txoutbox/outbox/schema"
)

// cluster is the PostgreSQL of a run, with the app's database: a primary and, if there are
// failovers, its synchronous standby.
type cluster struct {
	db        *sql.DB // the superuser's sessions on the primary, past all proxies; none stays idle
	database  string
	failovers bool

	mu      sync.Mutex
	primary *devpg.Server
	standby *devpg.Server // nil without failovers, and while one is made
	crashes []time.Time
}

const password = "chaos" // of the role app

// start starts the servers and makes the database. The caller must call close, also after an error.
func (c *cluster) start(ctx context.Context, settings map[string]string) (err error) {
	if c.primary, err = devpg.Open(ctx, nil, devpg.WithLocal(), devpg.WithSettings(settings)); err != nil {
		return err
	}
	created, _, err := c.primary.NewDatabase(ctx)
	if err != nil {
		return err
	}
	u, err := url.Parse(created)
	if err != nil {
		return err
	}
	c.database = u.Path[1:]
	c.db = sql.OpenDB(c)
	c.db.SetMaxIdleConns(-1)
	err = c.do(fmt.Sprintf(`CREATE ROLE stranger; CREATE ROLE %s LOGIN PASSWORD '%s'; ALTER DATABASE %s OWNER TO %[1]s`,
		app.User, password, pq.QuoteIdentifier(c.database)))
	if err != nil {
		return err
	}
	db, err := sql.Open("postgres", c.url(c.address()))
	if err != nil {
		return err
	}
	defer db.Close()
	if err := schema.Migrate(ctx, db); err != nil {
		return err
	}
	if _, err = db.ExecContext(ctx, app.Tables); err != nil || !c.failovers {
		return err
	}
	return c.attachStandby(ctx)
}

func (c *cluster) close() {
	if c.db != nil {
		_ = c.db.Close()
	}
	for _, server := range []*devpg.Server{c.standby, c.primary} {
		if server != nil {
			_ = server.Close()
		}
	}
}

// server is the one that takes writes.
func (c *cluster) server() *devpg.Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.primary
}

// superuser is the URL of the superuser's sessions.
func (c *cluster) superuser() *url.URL {
	u, err := url.Parse(c.server().URL())
	if err != nil {
		panic(err)
	}
	u.Path = "/" + c.database
	return u
}

// address of the server that takes writes.
func (c *cluster) address() string { return c.superuser().Host }

// url is that of the app's sessions.
func (c *cluster) url(address string) string {
	return (&url.URL{Scheme: "postgres", User: url.UserPassword(app.User, password), Host: address,
		Path: "/" + c.database, RawQuery: "sslmode=disable"}).String()
}

// Connect connects to the primary, as database/sql asks of a connector.
func (c *cluster) Connect(ctx context.Context) (driver.Conn, error) {
	connector, err := pq.NewConnector(c.superuser().String())
	if err != nil {
		return nil, err
	}
	return connector.Connect(ctx)
}

// Driver is the connector's.
func (c *cluster) Driver() driver.Driver { return &pq.Driver{} }

// do runs a statement as the superuser. It is tried for two minutes, as the server may be starting.
func (c *cluster) do(statement string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for {
		within, cancel := context.WithTimeout(ctx, time.Minute)
		_, err := c.db.ExecContext(within, statement, args...)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		wait(ctx, 100*time.Millisecond)
	}
}

// row scans the one value that a query of the superuser returns.
func (c *cluster) row(to any, query string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return c.db.QueryRowContext(ctx, query, args...).Scan(to)
}

// attachStandby makes a standby that commits wait for.
func (c *cluster) attachStandby(ctx context.Context) (err error) {
	standby, err := c.server().Standby(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, standby.Close())
		}
	}()
	if err := c.commitsWaitFor("*"); err != nil {
		return err
	}
	for range 300 {
		if c.inSync() {
			if err := c.do(`CHECKPOINT`); err != nil { // commits wait once the checkpointer has read the setting
				return err
			}
			c.mu.Lock()
			c.standby = standby
			c.mu.Unlock()
			return nil
		}
		wait(ctx, 50*time.Millisecond)
	}
	return errors.Join(errors.New("the standby did not become synchronous within 15 s"), c.commitsWaitFor(""))
}

// inSync reports whether a standby has all that was committed.
func (c *cluster) inSync() bool {
	var n int
	err := c.row(&n, `SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'`)
	return err == nil && n == 1
}

// commitsWaitFor sets the standbys that commits wait for.
func (c *cluster) commitsWaitFor(names string) error {
	return errors.Join(c.do(`ALTER SYSTEM SET synchronous_standby_names = '`+names+`'`), c.do(`SELECT pg_reload_conf()`))
}

// attaching reports whether a standby is being made. A crash would end that.
func (c *cluster) attaching() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failovers && c.standby == nil
}

// failOver kills the primary and promotes the standby, if it is in sync. It returns the old
// primary, which the caller closes, or nil if there was nothing to promote.
func (c *cluster) failOver() (old *devpg.Server, err error) {
	if c.attaching() || !c.inSync() {
		return nil, nil
	}
	if err := c.primary.Kill(); err != nil {
		return nil, err
	}
	c.crashed()
	if err := c.standby.Promote(context.Background()); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	old, c.primary, c.standby = c.primary, c.standby, nil
	return old, nil
}

// crashed records the moment: the server may lose what was committed asynchronously shortly before.
func (c *cluster) crashed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.crashes = append(c.crashes, time.Now())
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// broker is the NATS server, with JetStream, that relays forward events to. Each target has a stream
// of its own, so that one can be refused. The harness has an account whose password stays.
type broker struct {
	server  *server.Server
	options server.Options
	file    string // of the app's password
	version int    // of that password
	conn    *nats.Conn
	js      jetstream.JetStream
}

const harness = "harness" // user of the broker, and its password

// start starts the server and makes the streams. The caller must call close, also after an error.
func (b *broker) start(ctx context.Context, dir string) (err error) {
	b.file = filepath.Join(dir, "broker-password")
	b.options = server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: filepath.Join(dir, "broker"),
		NoSigs: true, NoLog: true}
	b.setUsers()
	first := b.options
	if b.server, err = server.NewServer(&first); err != nil {
		return err
	}
	go b.server.Start()
	if !b.server.ReadyForConnections(time.Minute) {
		return errors.New("the broker does not start")
	}
	b.options.Port = b.server.Addr().(*net.TCPAddr).Port
	if err := b.tellApp(); err != nil {
		return err
	}
	if b.conn, err = nats.Connect(b.url(), nats.UserInfo(harness, harness)); err != nil {
		return err
	}
	if b.js, err = jetstream.New(b.conn); err != nil {
		return err
	}
	for target := range app.Targets {
		if err := b.accept(ctx, target, true); err != nil {
			return err
		}
	}
	return nil
}

func (b *broker) url() string { return "nats://127.0.0.1:" + strconv.Itoa(b.options.Port) }

func (b *broker) setUsers() {
	b.options.Users = []*server.User{
		{Username: harness, Password: harness}, {Username: app.User, Password: b.password()},
	}
}

func (b *broker) password() string { return fmt.Sprint("chaos-", b.version) }

// tellApp writes the app's password where its processes read it.
func (b *broker) tellApp() error {
	next := b.file + ".next"
	if err := os.WriteFile(next, []byte(b.password()), 0o600); err != nil {
		return err
	}
	return os.Rename(next, b.file)
}

// rotate has the server take another password only, and ends the sessions of the app.
func (b *broker) rotate() error {
	b.version++
	b.setUsers()
	options := b.options
	return b.server.ReloadOptions(&options)
}

// accept has the target's stream take messages, or none: it is full then.
func (b *broker) accept(ctx context.Context, target int, yes bool) error {
	c := jetstream.StreamConfig{Name: fmt.Sprint("T", target), Subjects: []string{app.Subject(target)},
		Discard: jetstream.DiscardNew, MaxMsgs: 1, Duplicates: time.Hour}
	if yes {
		c.MaxMsgs = -1
	}
	_, err := b.js.CreateOrUpdateStream(ctx, c)
	return err
}

// event is a message that a target has taken.
type event struct {
	K   string
	Key string // its ordering key
	Seq int
}

// events are those of each target, in their order.
func (b *broker) events(ctx context.Context) (all [app.Targets][]event, err error) {
	for target := range app.Targets {
		stream, err := b.js.Stream(ctx, fmt.Sprint("T", target))
		if err != nil {
			return all, err
		}
		for n, last := uint64(1), stream.CachedInfo().State.LastSeq; n <= last; n++ {
			m, err := stream.GetMsg(ctx, n)
			if err != nil {
				return all, err
			}
			var p app.Payload
			if err := json.Unmarshal(m.Data, &p); err != nil {
				return all, err
			}
			all[target] = append(all[target], event{p.K, m.Header.Get("ce-partitionkey"), p.Seq})
		}
	}
	return all, nil
}

func (b *broker) close() {
	if b.conn != nil {
		b.conn.Close()
	}
	if b.server != nil {
		b.server.Shutdown()
		b.server.WaitForShutdown()
	}
}
