package cost_test

import (
	"context"
	"net"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
)

// counter is a connector of lib/pq that counts what its connections send once they are open. Polls
// come by the clock, some for each second that the tasks take; they are counted, and left out of
// the others.
type counter struct {
	*pq.Connector
	calls atomic.Int64 // queries, and statements that are prepared
	trips atomic.Int64 // how often a connection went from writing to reading
	polls atomic.Int64
}

// pollText matches the statements of a poll on the wire.
var pollText = regexp.MustCompile(`/\* outbox: (poll|find )`)

func newCounter(url string) (*counter, error) {
	connector, err := pq.NewConnector(url)
	if err != nil {
		return nil, err
	}
	c := &counter{Connector: connector}
	connector.Dialer(dialer{c})
	return c, nil
}

type dialer struct{ c *counter }

func (d dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	var plain net.Dialer
	conn, err := plain.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &wire{Conn: conn, counter: d.c}, nil
}

func (d dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

func (d dialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.DialContext(ctx, network, address)
}

// wire is a socket that counts.
type wire struct {
	net.Conn
	counter *counter
	counts  atomic.Bool // the handshake is over, and no poll under way
	wrote   atomic.Bool
}

// Write sees whole messages. The handshake has none of these two.
func (w *wire) Write(p []byte) (int, error) {
	if kind := p[0]; kind == 'Q' || kind == 'P' {
		poll := pollText.Match(p[:min(len(p), 100)])
		if poll {
			w.counter.polls.Add(1)
		} else {
			w.counter.calls.Add(1)
		}
		w.counts.Store(!poll)
	}
	w.wrote.Store(true)
	return w.Conn.Write(p)
}

func (w *wire) Read(p []byte) (int, error) {
	if w.wrote.Swap(false) && w.counts.Load() {
		w.counter.trips.Add(1)
	}
	return w.Conn.Read(p)
}
