// Package proxy is a TCP proxy before a PostgreSQL server that breaks connections where it is told
// to: at once, at a byte, at a message of the client's, or by silence. It reads the protocol of
// clients without TLS.
package proxy

import (
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// Proxy passes connections on to a server. Its methods are safe for concurrent use.
type Proxy struct {
	listener net.Listener
	serving  sync.WaitGroup

	mu     sync.Mutex
	to     string
	delay  time.Duration // of each thing that the server says
	traps  []*Trap
	conns  map[*conn]struct{}
	closed bool
	ended  chan struct{} // closed with it
}

// New starts a proxy on a free port of the loopback interface, before the server at the address.
func New(to string) (*Proxy, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, to: to, conns: map[*conn]struct{}{}, ended: make(chan struct{})}
	p.serving.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.serving.Go(func() { p.serve(client) })
		}
	})
	return p, nil
}

// Address is where the proxy listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Close ends all connections and waits until nothing of the proxy is left.
func (p *Proxy) Close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	close(p.ended)
	for c := range p.conns {
		c.cut()
	}
	p.mu.Unlock()
	p.serving.Wait()
}

// SendTo passes new connections on to another server, and cuts those that there are.
func (p *Proxy) SendTo(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = address
	for c := range p.conns {
		c.cut()
	}
}

// Delay holds everything back that the server says, for d.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Set sets a trap. It is gone once it has caught a connection.
func (p *Proxy) Set(t *Trap) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traps = append(p.traps, t)
}

// Spring sets a trap and reports whether it catches a connection within d. Then the trap is gone in
// any case.
func (p *Proxy) Spring(t Trap, d time.Duration) bool {
	caught := make(chan struct{})
	then := t.Then
	t.Then = func() {
		if then != nil {
			then()
		}
		close(caught)
	}
	p.Set(&t)
	select {
	case <-caught:
		return true
	case <-time.After(d):
	}
	if p.take(func(set *Trap) bool { return set == &t }) != nil {
		return false
	}
	<-caught
	return true
}

// caught is the trap that catches a message, which it takes away, or nil.
func (p *Proxy) caught(statement, before string) *Trap {
	return p.take(func(t *Trap) bool { return t.Catches(statement, before) })
}

// take takes away the first such trap, or returns nil.
func (p *Proxy) take(such func(*Trap) bool) *Trap {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.traps, such)
	if i < 0 {
		return nil
	}
	t := p.traps[i]
	p.traps = slices.Delete(p.traps, i, i+1)
	return t
}

// holdBack waits as long as Delay says, or until the proxy is closed.
func (p *Proxy) holdBack() {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-p.ended:
		}
	}
}

// Conns is the number of connections.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Cut cuts one of the connections, if there is one, once the server has said n bytes more on it: at
// once, if n is 0.
func (p *Proxy) Cut(n int) bool {
	return p.some(func(c *conn) bool { return !c.silenced.Load() }, func(c *conn) { c.cutAfter(n) })
}

// Silence silences a connection, if there is one: neither side receives anything of the other any
// more, not even its end. listening asks for one that has sent LISTEN.
func (p *Proxy) Silence(listening bool) bool {
	return p.some(func(c *conn) bool { return !c.silenced.Load() && c.listened.Load() == listening },
		func(c *conn) { c.silenced.Store(true) })
}

// CutSilent cuts the silent connections.
func (p *Proxy) CutSilent() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if c.silenced.Load() {
			c.cut()
		}
	}
}

func (p *Proxy) some(of func(*conn) bool, do func(*conn)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*conn
	for c := range p.conns {
		if of(c) {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return false
	}
	do(all[rand.IntN(len(all))])
	return true
}

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	p.mu.Lock()
	to := p.to
	p.mu.Unlock()
	server, err := net.DialTimeout("tcp", to, 5*time.Second)
	if err != nil {
		return
	}
	defer server.Close()
	c := &conn{client: client, server: server, holdBack: p.holdBack, caught: p.caught,
		held: make(chan struct{}), ended: make(chan struct{})}
	p.mu.Lock()
	ended := p.closed || p.to != to
	p.conns[c] = struct{}{}
	p.mu.Unlock()
	if !ended {
		c.pass()
	}
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

// How is what a trap does to the connection that it catches.
type How int

const (
	// LoseRequest cuts the connection before the message reaches the server.
	LoseRequest How = iota
	// LoseReply passes the message on and cuts the connection in place of the reply.
	LoseReply
	// LoseBoth passes the message on and cuts the connection at once, whatever becomes of it.
	LoseBoth
	// SilenceRequest silences the connection before the message reaches the server.
	SilenceRequest
	// SilenceReply passes the message on and silences the connection in place of the reply.
	SilenceReply
)

// Trap catches a connection at a message.
type Trap struct {
	// Catches is asked for each statement of a client: its text, and those of the statements before
	// it since the last COMMIT or ROLLBACK.
	Catches func(statement, before string) bool
	How     How
	// Then, unless nil, is called when the trap has caught a connection: before the message is
	// passed on or, for LoseReply and SilenceReply, when the server has replied.
	Then func()
}

// Commit catches a COMMIT of a transaction that has a statement with the text.
func Commit(of string) func(statement, before string) bool {
	return func(statement, before string) bool {
		return lastOf(statement) == "commit" && strings.Contains(before+statement, of)
	}
}

// Statement catches a statement with the text.
func Statement(text string) func(statement, before string) bool {
	return func(statement, _ string) bool { return strings.Contains(statement, text) }
}

// ends reports whether a message ends a transaction.
func ends(statement string) bool {
	last := lastOf(statement)
	return last == "commit" || last == "rollback"
}

// lastOf is the last statement of a message, in lower case.
func lastOf(statement string) string {
	statement = strings.TrimRight(statement, "; \n")
	return strings.ToLower(strings.TrimSpace(statement[strings.LastIndexByte(statement, ';')+1:]))
}
