package forwardtest

import (
	"net"
	"sync"
	"testing"
)

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
