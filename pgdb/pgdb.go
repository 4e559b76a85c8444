// Package pgdb opens a pool of lib/pq whose connections notice when the other side is gone without
// a word: a host that lost its power, a cable, a firewall or a proxy that forgot the connection.
//
// lib/pq itself waits for an answer as long as the operating system believes in the connection,
// which is minutes to hours, and the end of a call's context does not end that wait. A connection
// of [Open] breaks, and the call on it fails, when
//   - the other side has acknowledged nothing for 25 s. TCP keepalive starts after 10 s and repeats
//     every 5 s. On Linux TCP_USER_TIMEOUT also ends a connection whose other side receives nothing
//     more. Elsewhere the system decides when to give up. Unix sockets have neither.
//   - a call's context ended, and there is no answer 5 s after the cancel request. A connection
//     whose call was cancelled does not go back to the pool.
//   - it is not ready within 15 s, or when the context of the call that needs it ends. A host that
//     does not accept within 3 s, or is not ready within 8 s, makes way for the next one of the
//     connection string.
//
// A statement whose context has no end may take any time, and so may COMMIT, which may have to wait
// for a standby. A relay cancels its own BEGIN, COMMIT and ROLLBACK after 30 s without an answer,
// so it needs a pool of this kind to get every worker back.
package pgdb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// connectTimeout bounds the beginning of a connection, over all hosts, where the caller's context
// is longer.
const connectTimeout = 15 * time.Second

// Open returns a pool of connections that notice a dead peer, without connecting. dsn is a
// connection string of lib/pq: without sslmode the connection needs TLS, so for a server without
// TLS add sslmode=disable. What dsn leaves out is taken from PGHOST and the like. Open refuses what
// [OpenFunc] refuses, a malformed dsn, and target_session_attrs=prefer-standby, as an outbox
// writes. The error does not show dsn.
//
// The pool's limits are those of sql.Open: any number of connections, and two idle ones. The
// connection that [database/sql.Conn.Raw] gives is not lib/pq's own type, so pq.SetNoticeHandler
// and its like do not take it.
func Open(dsn string, opts ...Option) (*sql.DB, error) {
	if err := check(dsn); err != nil {
		return nil, fmt.Errorf("pgdb: Open: %w", err)
	}
	return OpenFunc(func(context.Context) (string, error) { return dsn, nil }, opts...)
}

// OpenFunc opens a pool as [Open] does, for a connection string that changes: a password that is
// rotated, a token that expires. dsn is called for each connection, by several goroutines at once.
// Its ctx ends with that of the call that needs the connection, after 15 s at the latest. If dsn
// panics, that call returns an error. OpenFunc refuses a nil dsn, a nil Option and a Dialer of nil.
func OpenFunc(dsn func(ctx context.Context) (string, error), opts ...Option) (*sql.DB, error) {
	if dsn == nil {
		return nil, errors.New("pgdb: the DSN function is nil")
	}
	c := &connector{dsn: dsn, dial: (&net.Dialer{Timeout: dialTimeout}).DialContext}
	for i, o := range opts {
		if o == nil {
			return nil, fmt.Errorf("pgdb: Option %d is nil", i)
		}
		o(c)
	}
	if c.dial == nil {
		return nil, errors.New("pgdb: Dialer: the function is nil")
	}
	return sql.OpenDB(c), nil
}

// Option changes a pool.
type Option func(*connector)

// Dialer makes the network connections of a pool: through a cloud provider's connector, or an SSH
// tunnel. network is "tcp" or "unix"; address is the host and port of the connection string, not
// resolved, or the socket's path. dial is called for each connection and each cancel request, by
// several goroutines at once. Its ctx ends with that of the call that needs the connection, and
// after 8 s at the latest; a connection that comes later is closed. If dial panics, that call
// returns an error.
//
// The 3 s for a host to accept do not apply. A *net.TCPConn gets keepalive, also below a *tls.Conn;
// for other connections dial has to see to it. LISTEN of a relay (relay.Config.ListenDSN) connects
// without the Dialer. Of several Dialers the last counts; nil is none.
func Dialer(dial func(ctx context.Context, network, address string) (net.Conn, error)) Option {
	return func(c *connector) {
		if c.dial = nil; dial != nil {
			c.dial = guarded(dial)
		}
	}
}

// check returns the mistake in a connection string. The error does not repeat the string.
func check(dsn string) error {
	if _, err := pq.NewConnector(dsn); err != nil {
		if pgerr.RepeatsDSN(err.Error()) {
			return errors.New("not a connection string of lib/pq; what is wrong with it is not shown, as that " +
				"repeats it")
		}
		return fmt.Errorf("not a connection string of lib/pq: %w", err)
	}
	if strings.Contains(dsn, "prefer-standby") { // without any host lib/pq tries them for ever, too
		return errors.New("target_session_attrs=prefer-standby: an outbox writes; use read-write or primary")
	}
	return nil
}

type connector struct {
	dsn  func(context.Context) (string, error)
	dial dialFunc
}

func (c *connector) Driver() driver.Driver { return &pq.Driver{} }

// Connect has a connector, and so a dialer, for each connection: what it dials later is a cancel
// request for that one.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	dsn, err := c.ask(ctx)
	if err != nil {
		return nil, fmt.Errorf("pgdb: connect: %w", err)
	}
	own, err := pq.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	w := &wire{dial: c.dial}
	own.Dialer(w)
	defer context.AfterFunc(ctx, w.breakOff)()
	conn, err := own.Connect(ctx)
	if err != nil {
		if ended := ctx.Err(); ended != nil {
			err = fmt.Errorf("%w: %w", ended, err)
		}
		return nil, err
	}
	pqc, ok := conn.(pqConn)
	if !ok || !w.connected() {
		return nil, errors.Join(driver.ErrBadConn, conn.Close())
	}
	return &wiredConn{pqConn: pqc, wire: w}, nil
}

// ask asks for the connection string.
func (c *connector) ask(ctx context.Context) (string, error) {
	dsn, err := guard.Within(ctx, func() (string, error) { return c.dsn(ctx) }, nil)
	if err != nil {
		return "", fmt.Errorf("the DSN function: %w", err)
	}
	return dsn, check(dsn)
}
