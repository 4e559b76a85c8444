package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/guard"
)

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

// bounded is a connection string whose connect_timeout is the listener's: Run waits for its end.
func bounded(dsn string) (string, error) {
	_, err := pq.NewConnector(dsn)
	if err == nil && strings.Contains(dsn, "://") {
		dsn, err = pq.ParseURL(dsn)
	}
	if err != nil {
		return "", errDSN
	}
	return fmt.Sprintf("%s connect_timeout=%d", dsn, int(connectTimeout.Seconds())), nil
}
