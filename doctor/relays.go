package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// worker is a relay's process. Zero workers or connections are not known, or any number.
type worker struct {
	id, host                           string
	pid                                int
	alive, old                         bool
	silent                             span // since it was to be alive
	workers, connections, leased, runs int64
	types                              string // in lines: a name has no control character
}

// handles reports whether the relay has a handler for a type.
func (w worker) handles(taskType string) bool {
	return slices.Contains(strings.Split(w.types, "\n"), taskType)
}

func (w worker) String() string { return fmt.Sprintf("%s (pid %d on %s)", w.id, w.pid, w.host) }

// Leases are counted by their index, up to a limit.
const relaysSQL = `/* outbox: relays */
WITH journal AS (SELECT relay_id, count(*) AS runs FROM (SELECT relay_id FROM outbox.running LIMIT 10000) AS part GROUP BY relay_id)
SELECT l.relay_id::text, l.host, l.pid, l.alive_until > clock_timestamp(), l.started_at < (SELECT max(applied_at) FROM outbox.migration),
       (extract(epoch FROM clock_timestamp() - l.alive_until) * 1000000)::bigint, array_to_string(l.task_types, E'\n'),
       COALESCE(l.workers, 0), COALESCE(l.connections, 0),
       (SELECT count(*) FROM (SELECT 1 FROM outbox.task t WHERE t.state = 'leased' AND t.relay_id = l.relay_id LIMIT 10000) AS held), COALESCE(j.runs, 0)
  FROM outbox.relay l LEFT JOIN journal j ON j.relay_id = l.relay_id
 ORDER BY l.alive_until DESC, l.relay_id LIMIT 1000`

func (v *visit) relays(ctx context.Context) (out []worker, err error) {
	var w worker
	into := []any{&w.id, &w.host, &w.pid, &w.alive, &w.old, &w.silent, &w.types, &w.workers, &w.connections, &w.leased, &w.runs}
	err = v.each(ctx, relaysSQL, nil, into, func() { out = append(out, w) })
	return out, err
}

const lateTakeover = 30 * time.Second // takeovers begin 10 s after the end of a lease

// checkRelays reports relays that are not there, or left something behind.
func (v *visit) checkRelays(relays []worker, todo, ready int64) {
	alive, old := 0, 0
	for _, w := range relays {
		switch {
		case w.alive:
			alive++
			if w.old {
				old++
			}
		case w.leased > 0 && w.silent.Duration > lateTakeover:
			v.add("relays", Warning, w.id,
				fmt.Sprintf("the relay %v has been dead for %s and still holds %s, which another should have taken over", w, w.silent, plural(w.leased, "leased task")),
				fmt.Sprintf("look into the log of the relays that are alive; at once: admin.Client.HandBack, or outbox relays hand-back %s", w.id))
		}
	}
	const do = "start a process that calls Relay.Run, and look into its log why it ends"
	switch {
	case alive == 0 && ready > 0:
		last := ""
		if len(relays) > 0 {
			last = fmt.Sprintf("; the last one that died was %v, silent for %s", relays[0], relays[0].silent)
		}
		v.add("relays", Critical, "", fmt.Sprintf("no relay is alive, and %s%s", isReady(ready), last), do)
	case alive == 0 && todo > 0:
		v.add("relays", Warning, "", fmt.Sprintf("no relay is alive, and %s to come", plural(todo, "task")), do)
	case alive == 0:
		v.add("relays", Info, "", "no relay is alive; there is nothing to do", "")
	case old > 0:
		v.add("relays", Info, "",
			fmt.Sprintf("%d of %s began before the newest migration was applied: they may be of an older version", old, plural(alive, "living relay")), "end the deploy, if it is not over yet")
	}
	if alive > 0 {
		v.add("relays", OK, "", plural(alive, "relay")+" alive", "")
	}
}

// first is the beginning of a list.
func first(names []string, n int) string {
	if len(names) > n {
		return strings.Join(names[:n], ", ") + fmt.Sprintf(" and %d more", len(names)-n)
	}
	return strings.Join(names, ", ")
}

func isReady(n int64) string { return plural(n, "task is ready", "tasks are ready") }

// How many connections a relay holds besides those of its workers, and how many those of Leased
// handlers share: relay.Config.Workers has it.
const (
	ownConns    = 2
	leasedConns = 10
)

const serverConnectionsSQL = `/* outbox: connections that the server has for relays */
SELECT LEAST(` + serverConnections + `, (SELECT NULLIF(datconnlimit, -1) FROM pg_database WHERE datname = current_database()))`

// needs is how many connections a relay wants for handlers of any kind, and if all are Leased.
func (w worker) needs() (full, leased int64) {
	return w.workers + ownConns, min(w.workers, leasedConns) + ownConns
}

// checkPools reports pools that are too small for their relay, and too large for the server.
func (v *visit) checkPools(ctx context.Context, relays []worker) error {
	var limit int64
	if err := v.row(ctx, serverConnectionsSQL, nil, &limit); err != nil {
		return err
	}
	// A pool without a limit takes what its relay needs, which depends on the kinds of handlers.
	// Relays of one process may share a pool.
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
		severity, hint = Info, fmt.Sprintf(" (or no more than %d, if all their handlers are Leased and those of one process share a pool)", least)
	}
	v.add("relay-pool", severity, "", fmt.Sprintf("the pools of %s may take %d connections together%s, and the server has %d for everybody: %s",
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
		v.add("relay-pool", Info, w.id, what+": that is enough only if all its handlers are Leased", "if some are Tx or Batch: "+do)
	}
}
