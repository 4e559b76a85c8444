package pg

import (
	"context"
	"net"
	"sync"
	"time"
)

// dialer dials for a pq.Listener, and can end what it dialled. The listener's own Close waits for a
// lock that is held while it connects, which may be for ever; and with lib/pq 1.10.9 a listener
// that is closed while it connects stays connected.
type dialer struct {
	ctx    context.Context // of all that is dialled
	cancel context.CancelFunc

	mu   sync.Mutex
	conn net.Conn // the last one: a listener has one at a time
}

func newDialer() *dialer {
	d := &dialer{}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

func (d *dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

func (d *dialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.DialContext(ctx, network, address)
}

func (d *dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	d.conn = conn
	return conn, nil
}

// close ends the connection and each wait for it. No other connection is dialled after it.
func (d *dialer) close() {
	d.cancel()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != nil {
		_ = d.conn.Close()
	}
}
