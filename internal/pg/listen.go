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
)

// Listener turns notifications into polls. A notification is a hint: without it the relay polls.
type Listener struct {
	DSN, Channel string
	ID           string // of this relay, in notifications
	PollInterval time.Duration
	Pool         *Pool
	Log          *slog.Logger
	Answered     *Broadcast        // PostgreSQL has, after an error
	Wake         func()            // lets the dispatcher poll
	Named        func(task string) // says what an enqueuer's wake-up names
	Withdrawn    func()            // hears that another relay may have withdrawn the wake-up request

	on     atomic.Bool // notifications are known to arrive
	warned bool
}

// Run listens until stop is closed. A pq.Listener that does not answer is abandoned for a new one,
// as it may hold its locks over I/O.
func (l *Listener) Run(stop <-chan struct{}) {
	for {
		err := l.listen(stop)
		if err == nil {
			return
		}
		if err == errAnswered {
			continue
		}
		l.off(err)
		select {
		case <-time.After(time.Second):
		case <-stop:
			return
		}
	}
}

// errAnswered ends a pq.Listener whose connection is lost, once PostgreSQL answers others: it would
// sleep for up to 5 s.
var errAnswered = errors.New("PostgreSQL answers again")

// listen returns nil when stop is closed.
func (l *Listener) listen(stop <-chan struct{}) error {
	events := make(chan error, 16)
	dialer := newDialer()
	pql := pq.NewDialListener(dialer, l.DSN, 200*time.Millisecond, 5*time.Second, func(e pq.ListenerEventType, err error) {
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
	var hung, untested, away <-chan time.Time
	var disconnected error
	var answered <-chan struct{} // not nil while disconnected
	ctx, cancel := context.WithCancel(context.Background())
	var tests sync.WaitGroup
	defer tests.Wait()
	defer cancel()
	test := func() {
		untested = time.After(testTimeout)
		tests.Go(func() { l.test(ctx) })
	}
	for {
		select {
		case <-stop:
			return nil
		case <-answered:
			if !l.on.Load() {
				return errAnswered
			}
			answered = nil
		case err := <-listened:
			if err != nil {
				return err
			}
			answered = nil
			l.back()
			test()
		case n := <-pql.Notify:
			switch {
			case n == nil: // reconnected: some may have been lost
				answered = nil
				l.back()
				test()
			case n.Extra == "" || strings.Contains(n.Extra, " "): // an enqueuer's
				l.Named(n.Extra)
				l.Wake()
			case n.Extra != l.ID: // another relay's
				l.Withdrawn()
			default: // this relay's
				untested, away = nil, nil
				if l.isOn() {
					l.Wake()
				}
			}
		case <-untested:
			untested = nil
			l.off(errors.New("LISTEN works, but a notification did not arrive: does ListenDSN lead to another database, or through a pooler?"))
		case err := <-events:
			if answered == nil {
				answered = l.Answered.await()
				l.Wake()
			}
			if l.on.Swap(false) {
				disconnected, away = err, time.After(blink)
			} else if away == nil {
				l.off(err)
			}
		case <-away:
			away = nil
			l.off(disconnected)
		case <-ping.C:
			if hung == nil {
				hung = time.After(pingTimeout)
				go func() { pinged <- pql.Ping() }()
			}
		case <-pinged: // an error makes the listener reconnect by itself
			hung = nil
		case <-hung:
			return errors.New("LISTEN connection does not answer")
		}
	}
}

// back tells all loops that PostgreSQL can be reached again.
func (l *Listener) back() {
	l.Answered.Send()
	l.Wake()
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
	if l.warned {
		l.warned = false
		l.Log.Info("outbox: wake-ups by LISTEN work again")
	}
	return true
}

func (l *Listener) off(err error) {
	l.on.Store(false)
	if err == nil {
		err = errors.New("disconnected")
	}
	if !l.warned {
		l.warned = true
		l.Log.Warn("outbox: no wake-ups by LISTEN; the relay polls until they work", "poll_interval", l.PollInterval, "error", pgerr.LogText(err))
	}
}
