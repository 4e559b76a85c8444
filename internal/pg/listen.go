package pg

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/pgerr"
)

const (
	pingInterval   = 15 * time.Second
	pingTimeout    = 5 * time.Second
	testTimeout    = 3 * time.Second
	connectTimeout = 5 * time.Second
	blink          = 3 * time.Second // a disconnection that is shorter is not worth a line in the log
	warnAgain      = time.Minute     // before another reason is logged
)

// Listener turns notifications into polls. A notification is a hint: without it the relay polls.
type Listener struct {
	DSN          func(context.Context) (string, error) // of lib/pq; asked for each connection
	Channel      string
	ID           string // of this relay, in notifications: alone, where it may have withdrawn the wake-up request
	PollInterval time.Duration
	Pool         *Pool
	Log          *slog.Logger
	Answered     *Broadcast             // PostgreSQL has, after an error
	Wake         func()                 // lets the dispatcher poll
	Heard        func(text string) bool // takes a notification that is no wake-up: true
	Named        func(task string)      // says what an enqueuer's wake-up names
	Withdrawn    func()                 // hears that another relay may have withdrawn the wake-up request

	on     atomic.Bool // notifications are known to arrive
	pace   Pace
	asked  chan dsnAnswer // of a call of DSN that has not returned
	lostAt time.Time      // since when there is no connection
	warned string         // why LISTEN does not work, as it was logged; empty while it does
	warnAt time.Time      // another reason is logged from then on
}

// Run listens until stop is closed.
func (l *Listener) Run(stop <-chan struct{}) {
	l.pace = NewPace(l.Answered, l.Wake)
	for {
		l.pace.Try()
		err := l.listen(stop)
		if err == nil {
			return
		}
		l.failed(err)
		select {
		case <-time.After(l.pace.Fail()):
		case <-l.pace.Answered:
		case <-stop:
			return
		}
	}
}

// listen connects, and returns what ends the connection, or nil when stop is closed.
func (l *Listener) listen(stop <-chan struct{}) error {
	dsn, err := l.dsn(stop)
	if err != nil || dsn == "" {
		return err
	}
	notified := make(chan *pq.Notification, 32)
	conn, err := connect(dsn, notified, stop)
	if err != nil || conn == nil {
		return err
	}
	defer func() {
		_ = conn.Close()
		for range notified { // it may wait to say one
		}
	}()
	replies := make(chan error, 1) // to LISTEN, and then to pings
	send := func(statement string) {
		go func() {
			_, err := conn.ExecSimpleQuery(statement)
			replies <- err
		}()
	}
	send("LISTEN " + pq.QuoteIdentifier(l.Channel))
	listening := false
	hung := time.After(pingTimeout)
	ping := time.NewTicker(pingInterval)
	defer ping.Stop()
	var untested <-chan time.Time
	ctx, cancel := context.WithCancel(context.Background())
	var tests sync.WaitGroup
	defer tests.Wait()
	defer cancel()
	for {
		select {
		case <-stop:
			return nil
		case err := <-replies:
			if err != nil {
				return err
			}
			if hung = nil; listening {
				continue
			}
			listening = true
			l.pace.Answered = nil // its own sign ends no pause of its own
			l.Answered.Send()
			l.Wake()
			untested = time.After(testTimeout)
			tests.Go(func() { l.test(ctx) })
		case n := <-notified:
			switch {
			case n == nil:
				return cmp.Or(conn.Err(), errors.New("disconnected"))
			case l.Heard(n.Extra):
			case n.Extra == "" || strings.Contains(n.Extra, " "): // an enqueuer's
				l.Named(n.Extra)
				l.Wake()
			case n.Extra == probe+l.ID:
				untested = nil
				if l.isOn() {
					l.Wake()
				}
			case n.Extra != l.ID && !strings.HasPrefix(n.Extra, probe):
				l.Withdrawn()
			}
		case <-untested:
			untested = nil
			l.off(errors.New("LISTEN works, but a notification did not arrive: " +
				"does ListenDSN lead to another database, or through a pooler?"))
		case <-ping.C:
			if hung == nil {
				hung = time.After(pingTimeout)
				send("")
			}
		case <-hung:
			return errors.New("LISTEN connection does not answer")
		}
	}
}

// Works reports whether notifications are known to arrive.
func (l *Listener) Works() bool { return l.on.Load() }

// probe is before a relay's id in the notification that it sends to itself.
const probe = "?"

// test sends a notification to this relay alone, by way of its database.
func (l *Listener) test(ctx context.Context) {
	_ = l.Pool.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "SELECT pg_notify($1, $2)", l.Channel, probe+l.ID)
		return err
	})
}

// isOn reports whether notifications had not been known to arrive.
func (l *Listener) isOn() bool {
	if l.on.Swap(true) {
		return false
	}
	l.pace.OK()
	if l.warned != "" {
		l.warned = ""
		l.Log.Info("outbox: wake-ups by LISTEN work again")
	}
	return true
}

// failed notes why there is no connection. A blink after one that worked is not logged.
func (l *Listener) failed(err error) {
	if l.on.Swap(false) {
		l.lostAt = time.Now()
	} else if time.Since(l.lostAt) > blink {
		l.off(err)
	}
}

// off logs that LISTEN does not work, once, and another reason for it once a minute.
func (l *Listener) off(err error) {
	text, now := pgerr.LogText(err), time.Now()
	if text == l.warned || l.warned != "" && now.Before(l.warnAt) {
		return
	}
	l.warned, l.warnAt = text, now.Add(warnAgain)
	l.Log.Warn("outbox: no wake-ups by LISTEN; the relay polls until they work",
		"poll_interval", l.PollInterval, "error", text)
}

// dsnTimeout is how long the app's function may take for a connection string.
const dsnTimeout = 10 * time.Second

var errDSN = errors.New("not a DSN of lib/pq (its text is not shown)")

type dsnAnswer struct {
	dsn string
	err error
}

// dsn asks the app for a connection string, whose connect_timeout is the listener's; "": stop was
// closed. If a call does not return when its context ends, the next try waits for it, so there is one
// call at a time.
func (l *Listener) dsn(stop <-chan struct{}) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dsnTimeout)
	defer cancel()
	if l.asked == nil {
		answers := make(chan dsnAnswer, 1)
		l.asked = answers
		go func() {
			var a dsnAnswer
			guard.Do(func() { a.dsn, a.err = l.DSN(ctx) }, func(broke error) {
				a.err = errors.Join(a.err, broke)
				answers <- a
			})
		}()
	}
	select {
	case a := <-l.asked:
		l.asked = nil
		if a.err != nil {
			return "", fmt.Errorf("ListenDSNFunc: %w", a.err)
		}
		return bounded(a.dsn)
	case <-time.After(dsnTimeout + time.Second): // it may return the end of its context
		return "", errors.New("ListenDSNFunc did not return when its context ended")
	case <-stop:
		return "", nil
	}
}

// connect connects, and closes the connection that comes too late; nil: stop was closed.
func connect(dsn string, notified chan<- *pq.Notification, stop <-chan struct{}) (*pq.ListenerConn, error) {
	type answer struct {
		conn *pq.ListenerConn
		err  error
	}
	connected := make(chan answer, 1)
	go func() {
		conn, err := pq.NewListenerConn(dsn, notified)
		connected <- answer{conn, err}
	}()
	select {
	case a := <-connected:
		return a.conn, a.err
	case <-stop:
		go func() {
			if a := <-connected; a.err == nil {
				_ = a.conn.Close()
			}
		}()
		return nil, nil
	}
}

// bounded is a connection string with the listener's connect_timeout, unless it has one.
func bounded(dsn string) (string, error) {
	if _, err := pq.NewConnector(dsn); err != nil {
		return "", errDSN
	}
	const name = "connect_timeout"
	seconds := strconv.Itoa(int(connectTimeout.Seconds()))
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return name + "=" + seconds + " " + dsn, nil // the last value counts
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", errDSN
	}
	q := u.Query()
	if !q.Has(name) {
		q.Set(name, seconds)
	}
	u.RawQuery = q.Encode()
	return u.String(), nil
}
