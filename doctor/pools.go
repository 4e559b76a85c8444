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
SELECT LEAST(` + serverConnections + `,
             (SELECT NULLIF(datconnlimit, -1) FROM pg_database WHERE datname = current_database()))`

// checkPools reports pools that are too small for their relay, and too large for the server.
func (v *visit) checkPools(ctx context.Context, relays []worker) error {
	var limit, together int64
	if err := v.row(ctx, serverConnectionsSQL, nil, &limit); err != nil {
		return err
	}
	ofProcess := map[string]int64{} // whose relays may share a pool
	var names []string
	for _, w := range relays {
		if !w.alive || w.workers == 0 {
			continue
		}
		process, conns := fmt.Sprint(w.pid, w.host), cmp.Or(w.connections, w.leastConns())
		ofProcess[process] = max(ofProcess[process], conns)
		names = append(names, fmt.Sprintf("%v %d", w, conns))
		if w.connections > 0 {
			v.checkPool(w)
		}
	}
	for _, n := range ofProcess {
		together += n
	}
	if together > limit {
		v.add("relay-pool", Warning, "",
			fmt.Sprintf("the pools of %s may take %d connections together, and the server has %d in all: %s",
				plural(len(names), "living relay"), together, limit, first(names, 5)),
			"fewer relay.Config.Workers with SetMaxOpenConns, PgBouncer in transaction mode before the server "+
				"(if it is there already, its default_pool_size decides), or a higher max_connections, which takes a "+
				"restart")
	}
	return nil
}

// leastConns are the connections that a relay uses if all its handlers are Leased.
func (w worker) leastConns() int64 { return min(w.workers, leasedConns) + ownConns }

// checkPool reports a pool with a limit that is too low.
func (v *visit) checkPool(w worker) {
	what := fmt.Sprintf("the pool of the relay %v is limited to %s, and it has %s",
		w, plural(w.connections, "connection"), plural(w.workers, "worker"))
	do := fmt.Sprintf("db.SetMaxOpenConns(%d) or more, on a *sql.DB of the relay's own, and one more with Schedules; "+
		"or fewer relay.Config.Workers", w.workers+ownConns)
	switch {
	case w.connections < w.leastConns():
		v.add("relay-pool", Warning, w.id,
			what+": it is too small whatever its handlers are, so workers wait for connections, and heartbeats "+
				"with them", do)
	case w.connections < w.workers+ownConns:
		v.add("relay-pool", Info, w.id, what+": that is enough only if all its handlers are Leased",
			"if some are Tx or Batch: "+do)
	}
}
