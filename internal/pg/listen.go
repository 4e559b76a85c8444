package pg

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pgerr"
)

const (
	pingInterval = 15 * time.Second
	pingTimeout  = 5 * time.Second
	testTimeout  = 3 * time.Second
	blink        = 3 * time.Second // a disconnection that is shorter is not worth a line in the log
	warnAgain    = time.Minute     // before another reason is logged
)

// Listener turns notifications into polls. A notification is a hint: without it the relay polls.
type Listener struct {
	DSN          func(context.Context) (string, error) // of lib/pq; asked for each connection
	Channel      string
	ID           string // of this relay, in notifications
	PollInterval time.Duration
	Pool         *Pool
	Log          *slog.Logger
	Answered     *Broadcast        // PostgreSQL has, after an error
	Wake         func()            // lets the dispatcher poll
	Named        func(task string) // says what an enqueuer's wake-up names
	Withdrawn    func()            // hears that another relay may have withdrawn the wake-up request

	on     atomic.Bool // notifications are known to arrive
	pace   Pace
	asked  chan dsnAnswer   // of a call of DSN that has not returned
	lost   error            // the latest, since a connection that worked
	away   <-chan time.Time // lost is logged then; nil if there is none
	warned string           // why LISTEN does not work, as it was logged; empty while it does
	warnAt time.Time        // another reason is logged from then on
}

// Run listens until stop is closed. Each connection has a DSN and a pq.Listener of its own. A
// pq.Listener that does not answer is abandoned, as it may hold its locks over I/O.
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

// errAnswered ends a try to connect that may take long, once PostgreSQL answers others.
var errAnswered = errors.New("no connection yet")

// listen connects, and returns what ends the connection, or nil when stop is closed.
func (l *Listener) listen(stop <-chan struct{}) error {
	dsn, err := l.dsn(stop)
	if err != nil || dsn == nil {
		return err
	}
	events := make(chan error, 1)
	dialer := newDialer()
	const reconnect = 200 * time.Millisecond
	pql := pq.NewDialListener(dialer, *dsn, reconnect, reconnect, func(e pq.ListenerEventType, err error) {
		if e == pq.ListenerEventDisconnected || e == pq.ListenerEventConnectionAttemptFailed {
			select {
			case events <- err:
			default:
			}
		}
	})
	closed := make(chan struct{})
	defer func() {
		dialer.close()
		go func() {
			_ = pql.Close()
			close(closed)
			for range pql.Notify { // it may wait to say one
			}
		}()
		select {
		case <-closed:
		case <-time.After(pingTimeout):
		}
	}()
	listened := make(chan error, 1)
	go func() { listened <- pql.Listen(l.Channel) }()
	ping := time.NewTicker(pingInterval)
	defer ping.Stop()
	pinged := make(chan error, 1)
	var hung, untested <-chan time.Time
	answered := l.pace.Answered // nil once connected
	ctx, cancel := context.WithCancel(context.Background())
	var tests sync.WaitGroup
	defer tests.Wait()
	defer cancel()
	for {
		select {
		case <-stop:
			return nil
		case <-answered:
			return errAnswered
		case err := <-listened:
			if err != nil {
				return err
			}
			answered, l.pace.Answered = nil, nil // its own sign ends no pause of its own
			l.Answered.Send()
			l.Wake()
			untested = time.After(testTimeout)
			tests.Go(func() { l.test(ctx) })
		case n := <-pql.Notify:
			switch {
			case n == nil: // a new connection, after events
			case n.Extra == "" || strings.Contains(n.Extra, " "): // an enqueuer's
				l.Named(n.Extra)
				l.Wake()
			case n.Extra != l.ID: // another relay's
				l.Withdrawn()
			default: // this relay's
				untested = nil
				if l.isOn() {
					l.Wake()
				}
			}
		case <-untested:
			untested = nil
			l.off(errors.New("LISTEN works, but a notification did not arrive: " +
				"does ListenDSN lead to another database, or through a pooler?"))
		case err := <-events:
			if err == nil {
				err = errors.New("disconnected")
			}
			return err
		case <-l.away:
			l.off(l.lost)
		case <-ping.C:
			if hung == nil {
				hung = time.After(pingTimeout)
				go func() { pinged <- pql.Ping() }()
			}
		case <-pinged: // an error ends the connection
			hung = nil
		case <-hung:
			return errors.New("LISTEN connection does not answer")
		}
	}
}

// Works reports whether notifications are known to arrive.
func (l *Listener) Works() bool { return l.on.Load() }

// test sends a notification to this relay alone, by way of its database.
func (l *Listener) test(ctx context.Context) {
	_ = l.Pool.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "SELECT pg_notify($1, $2)", l.Channel, l.ID)
		return err
	})
}

// isOn reports whether notifications had not been known to arrive.
func (l *Listener) isOn() bool {
	if l.on.Swap(true) {
		return false
	}
	l.pace.OK()
	l.away = nil
	if l.warned != "" {
		l.warned = ""
		l.Log.Info("outbox: wake-ups by LISTEN work again")
	}
	return true
}

// failed notes why there is no connection. A blink after one that worked is not logged.
func (l *Listener) failed(err error) {
	if err == errAnswered {
		return
	}
	l.lost = err
	if l.on.Swap(false) {
		l.away = time.After(blink)
	} else if l.away == nil {
		l.off(err)
	}
}

// off logs that LISTEN does not work, once, and another reason for it once a minute.
func (l *Listener) off(err error) {
	l.away = nil
	text, now := pgerr.LogText(err), time.Now()
	if text == l.warned || l.warned != "" && now.Before(l.warnAt) {
		return
	}
	l.warned, l.warnAt = text, now.Add(warnAgain)
	l.Log.Warn("outbox: no wake-ups by LISTEN; the relay polls until they work",
		"poll_interval", l.PollInterval, "error", text)
}
