//go:build unix

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/chaos/proxy"
	"github.com/txoutbox/outbox/internal/devpg"
	"github.com/txoutbox/outbox/schema"
)

// arena is everything that a run is made of.
type arena struct {
	options
	dir       string
	database  string // its name
	password  string // of the role app
	sink      *sink
	relays    []*seat
	producers []*seat
	began     time.Time      // the torment
	events    *os.File       // the log of faults
	asides    sync.WaitGroup // of faults that take their time
	over      atomic.Bool    // no more faults

	environment map[string]string // before faults that change it

	mu      sync.Mutex
	primary *devpg.Server
	standby *devpg.Server // nil without failovers
	counts  map[string]int
	crashes []time.Time // of the server
	healers []func()    // of faults that last, until they are over
	noise   []string    // what the harness itself could not do
	wrong   map[string][]string

	failures map[string]int // of faults that could not be done
}

// seat is a process that is started again when it ends, and the proxy that it reaches the server by.
type seat struct {
	proxy  *proxy.Proxy
	config childConfig
	log    string

	mu      sync.Mutex
	process *process
	closed  bool
	wait    sync.WaitGroup
	starts  int
}

const app = "app" // the role of the app

// settings of the clusters. Their standbys are to be back soon, as commits wait for them, and find the log that they missed.
func (a *arena) settings() map[string]string {
	keep := "1GB"
	if a.has("disk") {
		keep = "0"
	}
	return map[string]string{"fsync": "on", "max_connections": "150", "wal_retrieve_retry_interval": "100ms", "wal_receiver_status_interval": "1s",
		"max_wal_size": "256MB", "wal_keep_size": keep}
}

func newArena(ctx context.Context, o options) (a *arena, err error) {
	a = &arena{options: o, password: "chaos", counts: map[string]int{}, wrong: map[string][]string{}, failures: map[string]int{}}
	defer func() {
		if err != nil {
			a.close()
			_ = os.RemoveAll(a.dir)
		}
	}()
	if a.dir, err = os.MkdirTemp("", "outbox-chaos-"); err != nil {
		return a, err
	}
	if a.events, err = os.Create(filepath.Join(a.dir, "faults.log")); err != nil {
		return a, err
	}
	if err := a.prepareFaults(); err != nil {
		return a, err
	}
	if a.primary, err = devpg.Open(ctx, nil, devpg.WithLocal(), devpg.WithSettings(a.settings())); err != nil {
		return a, err
	}
	if err := a.prepareDatabase(ctx); err != nil {
		return a, err
	}
	if a.has("failover") {
		if err := a.attachStandby(ctx); err != nil {
			return a, err
		}
	}
	if a.sink, err = newSink(); err != nil {
		return a, err
	}
	for i := range o.Relays {
		s, err := a.seat(childConfig{Role: "relay", Name: fmt.Sprint("relay-", i)})
		if err != nil {
			return a, err
		}
		a.relays = append(a.relays, s)
	}
	for i := range o.Producers {
		s, err := a.seat(childConfig{Role: "producer", Name: fmt.Sprint("p", i), Seed: o.Seed + uint64(i), Tasks: (o.Tasks + o.Producers - 1) / o.Producers})
		if err != nil {
			return a, err
		}
		a.producers = append(a.producers, s)
	}
	return a, nil
}

func (a *arena) prepareDatabase(ctx context.Context) error {
	admin, _, err := a.primary.NewDatabase(ctx)
	if err != nil {
		return err
	}
	u, err := url.Parse(admin)
	if err != nil {
		return err
	}
	a.database = u.Path[1:]
	err = a.admin(ctx, func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD '%s'; ALTER DATABASE %s OWNER TO %[1]s`, app, a.password, pq.QuoteIdentifier(a.database)))
		return err
	})
	if err != nil {
		return err
	}
	db, err := sql.Open("postgres", a.url(a.address()))
	if err != nil {
		return err
	}
	defer db.Close()
	if err := schema.Migrate(ctx, db); err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, tables)
	return err
}

// address of the server that takes writes.
func (a *arena) address() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	u, err := url.Parse(a.primary.URL())
	if err != nil {
		panic(err)
	}
	return u.Host
}

// url is where the app finds its database.
func (a *arena) url(address string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(app, a.password), Host: address, Path: "/" + a.database, RawQuery: "sslmode=disable"}
	return u.String()
}

// admin calls f with the administrator's pool on the app's database, past all proxies.
func (a *arena) admin(ctx context.Context, f func(db *sql.DB) error) error {
	a.mu.Lock()
	u, err := url.Parse(a.primary.URL())
	a.mu.Unlock()
	if err != nil {
		return err
	}
	u.Path = "/" + a.database
	db, err := sql.Open("postgres", u.String())
	if err != nil {
		return err
	}
	defer db.Close()
	return f(db)
}

// do runs a statement as the administrator. It is tried for a while, as the server may be on its way.
func (a *arena) do(statement string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for {
		err := a.admin(ctx, func(db *sql.DB) error {
			within, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			_, err := db.ExecContext(within, statement, args...)
			return err
		})
		if err == nil || ctx.Err() != nil {
			return err
		}
		wait(ctx, 100*time.Millisecond)
	}
}

// number is what a query of the administrator's returns.
func (a *arena) number(query string, args ...any) (n int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	err = a.admin(ctx, func(db *sql.DB) error { return db.QueryRowContext(ctx, query, args...).Scan(&n) })
	return n, err
}

func (a *arena) attachStandby(ctx context.Context) (err error) {
	a.mu.Lock()
	primary := a.primary
	a.mu.Unlock()
	standby, err := primary.Standby(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, standby.Close())
		}
	}()
	if err := a.synchronous("*"); err != nil {
		return err
	}
	for range 300 {
		if n, err := a.number(`SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'`); err == nil && n == 1 {
			if err := a.do(`CHECKPOINT`); err != nil { // commits wait once the checkpointer has read the setting
				return err
			}
			a.mu.Lock()
			a.standby = standby
			a.mu.Unlock()
			return nil
		}
		wait(ctx, 50*time.Millisecond)
	}
	return errors.Join(errors.New("the standby did not become synchronous within 15 s"), a.synchronous(""))
}

// synchronous says which standbys commits wait for.
func (a *arena) synchronous(names string) error {
	return errors.Join(a.do(`ALTER SYSTEM SET synchronous_standby_names = '`+names+`'`), a.do(`SELECT pg_reload_conf()`))
}

// seat starts a process that is started again whenever it ends.
func (a *arena) seat(c childConfig) (*seat, error) {
	p, err := proxy.New(a.address())
	if err != nil {
		return nil, err
	}
	c.Dawdle = 50
	if a.has("kill") { // what a killed relay had under way runs again alone, and 3 s apart if it takes its time
		c.Dawdle = 500
	}
	if a.onlyPoison() { // a task that takes longer than 3 s may lose more than one attempt to it
		c.Dawdle = 0
	}
	c.URL, c.Driver, c.Sink, c.Dir = a.url(p.Address()), a.Driver, a.sink.url, a.dir
	s := &seat{proxy: p, config: c, log: filepath.Join(a.dir, c.Name+".log")}
	if err := s.start(); err != nil {
		p.Close()
		return nil, err
	}
	s.wait.Go(s.supervise)
	return s, nil
}

// start starts the process, unless the seat is closed.
func (s *seat) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	c := s.config
	c.Name = fmt.Sprint(c.Name, ".", s.starts)
	p, err := start(c, s.log)
	if err == nil {
		s.starts++
		s.process = p
	}
	return err
}

func (s *seat) supervise() {
	for {
		p := s.running()
		<-p.ended
		s.mu.Lock()
		done := s.closed || s.config.Role == "producer" && p.err == nil
		s.mu.Unlock()
		if done {
			return
		}
		for s.start() != nil { // the machine has no room for a process now
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func (s *seat) running() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// stop ends the process in order, for good.
func (s *seat) stop(within time.Duration) error {
	s.mu.Lock()
	s.closed = true
	p := s.process
	s.mu.Unlock()
	err := p.terminate(within)
	s.wait.Wait()
	return err
}

// close leaves nothing behind but the files.
func (a *arena) close() {
	a.asides.Wait()
	for _, s := range append(a.producers, a.relays...) {
		s.mu.Lock()
		s.closed = true
		s.process.kill()
		s.mu.Unlock()
		s.wait.Wait()
		s.proxy.Close()
	}
	if a.sink != nil {
		a.sink.close()
	}
	for _, server := range []*devpg.Server{a.standby, a.primary} {
		if server != nil {
			if err := server.Close(); err != nil {
				fmt.Fprintln(os.Stderr, "chaos:", err)
			}
		}
	}
	a.endFaults()
	if a.events != nil {
		_ = a.events.Close()
	}
}
