package txrun

import (
	"context"
	"database/sql"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
)

const (
	slowTransaction = 5 * time.Second // when the relay warns of a Tx or Batch handler
	slowLook        = 2 * time.Second // for the look at its backend
)

// backend is what the backend of a transaction does. It is zero if that is not known.
type backend struct{ state, waitType, wait, blockers string }

const backendSQL = `/* outbox: look what the transaction of a handler waits for */
SELECT COALESCE(a.state, ''), COALESCE(a.wait_event_type, ''), COALESCE(a.wait_event, ''),
       pg_catalog.array_to_string(pg_catalog.pg_blocking_pids(l.pid), ' ')
  FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
   AND l.transactionid = $1::pg_catalog.text::pg_catalog.xid8::pg_catalog.xid`

// warnSlow looks at a handler's transaction on another connection, and gives the advice that fits.
func (p *Params) warnSlow(h *handler.Handler, xid string, tasks int) {
	ctx, cancel := context.WithTimeout(context.Background(), slowLook)
	defer cancel()
	var b backend
	err := p.Store.Conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, backendSQL, xid).Scan(&b.state, &b.waitType, &b.wait, &b.blockers)
	})
	if err != nil { // no connection is free, or the transaction has ended
		b = backend{}
	}
	attrs := []any{"task_type", h.Type, "tasks", tasks, "after", slowTransaction}
	if b.state != "" {
		attrs = append(attrs, "state", b.state)
	}
	if b.waitType != "" {
		attrs = append(attrs, "waits_for", b.waitType+" "+b.wait)
	}
	if b.blockers != "" {
		attrs = append(attrs, "blocked_by_pid", b.blockers)
	}
	p.Report.Log.Warn("outbox: a handler keeps a transaction open for long"+b.advice(h.Forwards), attrs...)
}

// advice is what the log says besides.
func (b backend) advice(forwards bool) string {
	switch {
	case b.waitType == "Lock":
		return ": it waits for a lock; shorten the transactions that hold it"
	case b.state == "active":
		return ": its statement is slow; look at the statement's plan"
	case forwards:
		return ": the broker has not acknowledged its events"
	case b.state == "":
		return ""
	}
	return ": it sends no statement; if it waits for anything but PostgreSQL, register it as Leased"
}
