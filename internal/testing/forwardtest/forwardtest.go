// Package forwardtest is what the tests of publishers share: events with ordering keys, relays in
// processes of their own that are killed, and a check of what a consumer received.
//
// The TestMain of a package calls Main.
package forwardtest

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/child"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// Payload is that of an event: the N-th one of all.
type Payload struct {
	N int `json:"n"`
}

// Placed is the type of the events.
var Placed = outbox.NewTaskType[Payload]("order.placed")

type childConfig struct{ URL, Broker, To string }

// Main is the TestMain of a package. connect makes a publisher for a relay process. ends are called
// after the tests.
func Main(m *testing.M, connect func(broker string) (forward.Publisher, error), ends ...func()) {
	child.Run(func(ctx context.Context, c childConfig) error {
		db, err := sql.Open(relaytest.DriverName(), c.URL)
		if err != nil {
			return err
		}
		publisher, err := connect(c.Broker)
		if err != nil {
			return err
		}
		reg := handlers.New()
		forward.Register(reg, Placed, publisher, forward.Source("/forwardtest"), forward.To(c.To),
			forward.HandlerOptions(handlers.MaxAttempts(1000)))
		r, err := relay.New(db, reg, relay.Config{Workers: 4, PollInterval: 100 * time.Millisecond,
			Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))})
		if err != nil {
			return err
		}
		return r.Run(ctx)
	})
	relaytest.Main(m, ends...)
}

// Enqueue enqueues n events of so many keys, in their order.
func Enqueue(t testing.TB, db *relaytest.Database, from, n, keys int) {
	t.Helper()
	var tasks []outbox.TaskSpec
	for i := from; i < from+n; i++ {
		tasks = append(tasks, Placed.New(Payload{N: i}, outbox.OrderedBy(fmt.Sprint("key ", i%keys))))
	}
	Must(t, outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
		_, err := outbox.EnqueueMany(t.Context(), tx, tasks)
		return err
	}))
}

// Must fails the test on an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// WantErrors checks that each error has its text.
func WantErrors(t testing.TB, errs map[string]error) {
	t.Helper()
	for says, err := range errs {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %s", err, says)
		}
	}
}

// NothingLeft waits until each task is done or a dead letter.
func NothingLeft(t testing.TB, db *relaytest.Database) {
	t.Helper()
	db.Emptied(t, 2*time.Minute)
}

// Relays are processes with a relay each, which publish to a broker.
type Relays struct {
	t         testing.TB
	config    childConfig
	processes []*child.Process
	log       *relaytest.Records
	db        *relaytest.Database
}

// Start starts n relay processes, which end with the test.
func Start(t testing.TB, db *relaytest.Database, n int, broker, to string) *Relays {
	t.Helper()
	r := &Relays{t, childConfig{db.URL, broker, to}, make([]*child.Process, n), &relaytest.Records{}, db}
	for i := range r.processes {
		r.start(i)
	}
	t.Cleanup(func() {
		for _, p := range r.processes {
			_ = p.Kill()
			<-p.Ended
		}
		if t.Failed() {
			t.Logf("the relays said:\n%s", r.log.Tail())
		}
	})
	return r
}

func (r *Relays) start(i int) {
	r.t.Helper()
	var err error
	r.processes[i], err = child.Start(r.config, r.log)
	Must(r.t, err)
}

// Kill kills a relay process, and starts another one.
func (r *Relays) Kill() {
	r.t.Helper()
	i := rand.IntN(len(r.processes))
	p := r.processes[i]
	_ = p.Kill()
	<-p.Ended
	// Its lease need not run out first.
	r.db.Do(r.t, fmt.Sprintf(`UPDATE outbox.relay SET alive_until = clock_timestamp() - interval '1 second'
		WHERE pid = %d`, p.Pid))
	r.start(i)
}

// Received is an event on the consumer's side.
type Received struct {
	Key, ID, ContentType string
	Headers              map[string]string
	Data                 []byte
}

// Check checks that each of n events of so many keys has arrived, and that the first arrivals of
// each key ascend. once: none has arrived twice.
func Check(t testing.TB, got []Received, n, keys int, once bool) {
	t.Helper()
	seen, last := map[string]bool{}, map[string]int{}
	for _, r := range got {
		if seen[r.ID] {
			if once {
				t.Errorf("event %s of %s arrived twice", r.ID, r.Key)
			}
			continue
		}
		seen[r.ID] = true
		var p Payload
		Must(t, json.Unmarshal(r.Data, &p))
		if want := fmt.Sprint("key ", p.N%keys); r.Key != want {
			t.Errorf("event %d has the key %q, want %q", p.N, r.Key, want)
		}
		if before, any := last[r.Key]; any && p.N <= before {
			t.Errorf("%s: event %d arrived after event %d", r.Key, p.N, before)
		}
		last[r.Key] = p.N
	}
	if len(seen) != n {
		t.Errorf("%d of %d events arrived", len(seen), n)
	}
	t.Logf("%d events arrived, %d of them again", len(got), len(got)-len(seen))
}

// Fault is whose fault a publisher's error is by its mark, in the words of docs/faults.md.
func Fault(err error) string {
	switch {
	case err == nil:
		return "none"
	case forward.IsPermanent(err):
		return "the event's, for good"
	case forward.IsTargetUnavailable(err):
		return "the target's"
	case forward.IsUnavailable(err):
		return "the broker's"
	}
	return "the event's"
}

// Proxy passes connections on to a broker of any protocol, until it is told otherwise.
type Proxy struct {
	Address string // where it listens
	to      string
	t       testing.TB
	running sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while it is stopped
	conns    map[net.Conn]bool
	going    chan struct{} // closed unless the proxy holds back what clients send
	held     chan struct{} // gets a value when something is held back
	mute     bool          // the next reply breaks its connection
}

// NewProxy starts a proxy before the broker at an address. It ends with the test.
func NewProxy(t testing.TB, to string) *Proxy {
	t.Helper()
	p := &Proxy{Address: "127.0.0.1:0", to: to, t: t, conns: map[net.Conn]bool{}, held: make(chan struct{}, 1),
		going: make(chan struct{})}
	close(p.going)
	p.Start()
	t.Cleanup(func() {
		p.Release()
		p.Stop()
		p.running.Wait()
	})
	return p
}

// Start listens again, at the same address.
func (p *Proxy) Start() {
	p.t.Helper()
	l, err := net.Listen("tcp", p.Address)
	Must(p.t, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener, p.Address = l, l.Addr().String()
	p.running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { p.serve(client) })
		}
	})
}

// Stop refuses connections, and cuts those that there are.
func (p *Proxy) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	for c := range p.conns {
		_ = c.Close()
	}
}

// Hold holds back what clients send, until Release. held gets a value when there is something.
func (p *Proxy) Hold() (held <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.going = make(chan struct{})
	select {
	case <-p.held:
	default:
	}
	return p.held
}

// Release passes on what was held back.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.going:
	default:
		close(p.going)
	}
}

// LoseReplies breaks a connection in place of each reply, until restore is called.
func (p *Proxy) LoseReplies() (restore func()) {
	set := func(mute bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.mute = mute
	}
	set(true)
	return func() { set(false) }
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.to)
	if err != nil {
		_ = client.Close()
		return
	}
	p.mu.Lock()
	stopped := p.listener == nil
	p.conns[client], p.conns[server] = true, true
	p.mu.Unlock()
	if stopped {
		_ = client.Close()
	}
	p.running.Go(func() { p.pass(client, server, p.mayReply) })
	p.pass(server, client, p.maySend)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, client)
	delete(p.conns, server)
}

// pass copies what may be copied, and closes both ends.
func (p *Proxy) pass(to, from net.Conn, may func() bool) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 1<<14)
	for {
		n, err := from.Read(buffer)
		if err != nil || !may() {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func (p *Proxy) maySend() bool {
	p.mu.Lock()
	going := p.going
	p.mu.Unlock()
	select {
	case <-going:
	default:
		select {
		case p.held <- struct{}{}:
		default:
		}
		<-going
	}
	return true
}

func (p *Proxy) mayReply() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.mute
}
