package doctor

import (
	"cmp"
	"context"
	"fmt"
)

// The connections that a relay holds besides those of its workers, and that its Leased handlers
// share, as relay.Config.Workers says.
const (
	ownConns    = 2
	leasedConns = 10
)

const serverConnectionsSQL = `/* outbox: connections that the server has for relays */
SELECT LEAST(` + serverConnections + `, (SELECT NULLIF(datconnlimit, -1) FROM pg_database WHERE datname = current_database()))`

// needs are the connections that a relay uses for handlers of any kind, and if all are Leased.
func (w worker) needs() (full, leased int64) {
	return w.workers + ownConns, min(w.workers, leasedConns) + ownConns
}

// checkPools reports pools that are too small for their relay, and too large for the server.
func (v *visit) checkPools(ctx context.Context, relays []worker) error {
	var limit int64
	if err := v.row(ctx, serverConnectionsSQL, nil, &limit); err != nil {
		return err
	}
	// A pool without a limit takes as many as its relay needs, which depends on the kinds of its
	// handlers. Relays of one process may share a pool.
	var most, least int64
	ofProcess := map[string]int64{}
	var names []string
	for _, w := range relays {
		if !w.alive || w.workers == 0 {
			continue
		}
		need, leased := w.needs()
		may, process := cmp.Or(w.connections, need), fmt.Sprint(w.pid, w.host)
		most += may
		ofProcess[process] = max(ofProcess[process], cmp.Or(w.connections, leased))
		names = append(names, fmt.Sprintf("%v %d", w, may))
		if w.connections > 0 {
			v.checkPool(w)
		}
	}
	for _, n := range ofProcess {
		least += n
	}
	if most <= limit {
		return nil
	}
	severity, hint := Warning, ""
	if least <= limit {
		severity = Info
		hint = fmt.Sprintf(" (or no more than %d, if all their handlers are Leased and those of one process share a pool)", least)
	}
	v.add("relay-pool", severity, "",
		fmt.Sprintf("the pools of %s may take %d connections together%s, and the server has %d in all: %s",
			plural(len(names), "living relay"), most, hint, limit, first(names, 5)),
		"fewer relay.Config.Workers with SetMaxOpenConns, PgBouncer in transaction mode before the server "+
			"(if it is there already, its default_pool_size decides), or a higher max_connections, which takes a restart")
	return nil
}

// checkPool reports a pool with a limit that is too low.
func (v *visit) checkPool(w worker) {
	need, leased := w.needs()
	what := fmt.Sprintf("the pool of the relay %v is limited to %s, and it has %s",
		w, plural(w.connections, "connection"), plural(w.workers, "worker"))
	do := fmt.Sprintf("db.SetMaxOpenConns(%d) or more, on a *sql.DB of the relay's own, and one more with Schedules; "+
		"or fewer relay.Config.Workers", need)
	switch {
	case w.connections < leased:
		v.add("relay-pool", Warning, w.id,
			what+": it is too small whatever its handlers are, so workers wait for connections, and heartbeats with them", do)
	case w.connections < need:
		v.add("relay-pool", Info, w.id, what+": that is enough only if all its handlers are Leased",
			"if some are Tx or Batch: "+do)
	}
}
