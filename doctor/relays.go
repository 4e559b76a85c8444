package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// worker is a relay's process. Zero workers: unknown.
type worker struct {
	id, host              string
	pid                   int
	alive, old            bool
	silent                time.Duration // since alive_until
	workers, leased, runs int64
	types                 string // in lines: a name has no control character
}

// handles reports whether the relay has a handler for a type.
func (w worker) handles(taskType string) bool {
	return slices.Contains(strings.Split(w.types, "\n"), taskType)
}

func (w worker) String() string { return fmt.Sprintf("%s (pid %d on %s)", w.id, w.pid, w.host) }

// Leases are counted by their index, up to a limit.
const relaysSQL = `/* outbox: relays */
WITH journal AS (
  SELECT relay_id, count(*) AS runs FROM (SELECT relay_id FROM outbox.running LIMIT 10000) AS part GROUP BY relay_id)
SELECT l.relay_id::text, l.host, l.pid, l.alive_until > clock_timestamp(),
       l.started_at < (SELECT max(applied_at) FROM outbox.migration),
       (extract(epoch FROM clock_timestamp() - l.alive_until) * 1000000)::bigint, array_to_string(l.task_types, E'\n'),
       COALESCE(l.workers, 0),
       (SELECT count(*) FROM (SELECT 1 FROM outbox.task t
                               WHERE t.state = 'leased' AND t.relay_id = l.relay_id LIMIT 10000) AS held),
       COALESCE(j.runs, 0)
  FROM outbox.relay l LEFT JOIN journal j ON j.relay_id = l.relay_id
 ORDER BY l.alive_until DESC, l.relay_id LIMIT 1000`

func (v *visit) relays(ctx context.Context) (out []worker, err error) {
	var w worker
	var silent int64 // µs
	into := []any{&w.id, &w.host, &w.pid, &w.alive, &w.old, &silent, &w.types, &w.workers, &w.leased, &w.runs}
	err = v.each(ctx, relaysSQL, nil, into, func() {
		w.silent = time.Duration(silent) * time.Microsecond
		out = append(out, w)
	})
	return out, err
}

const lateTakeover = 30 * time.Second // takeovers begin 10 s after the end of a lease

// checkRelays reports a lack of relays, old relays, and leases of dead relays.
func (v *visit) checkRelays(relays []worker, elsewhere []string, todo, ready int64) {
	alive, old := 0, 0
	for _, w := range relays {
		switch {
		case w.alive:
			alive++
			if w.old {
				old++
			}
		case w.leased > 0 && w.silent > lateTakeover:
			v.add("relays", SeverityWarning, w.id,
				fmt.Sprintf("the relay %v has been dead for %s and still holds %s, which another should have "+
					"taken over",
					w, said(w.silent), plural(w.leased, "leased task")),
				"look into the log of the living relays; at once: admin.Client.HandBack, or outbox relays "+
					"hand-back "+w.id)
		}
	}
	do := "start a process that calls Relay.Run, and its log says why it ends"
	others := ""
	if len(elsewhere) > 0 {
		others = "; alive are " + strings.Join(elsewhere, ", ")
		do = "if they are to run its tasks, correct relay.Config.Schema, or the schema of the app's Enqueue; else " + do
	}
	switch {
	case alive == 0 && ready > 0:
		last := ""
		if len(relays) > 0 {
			last = fmt.Sprintf("; the last one that died was %v, silent for %s", relays[0], said(relays[0].silent))
		}
		v.add("relays", SeverityCritical, "", fmt.Sprintf("no relay is alive, and %s%s%s", isReady(ready), last, others), do)
	case alive == 0 && todo > 0:
		v.add("relays", SeverityWarning, "", fmt.Sprintf("no relay is alive, and %s to come%s", plural(todo, "task"), others), do)
	case alive == 0:
		v.add("relays", SeverityInfo, "", "no relay is alive; there is nothing to do", "")
	case old > 0:
		v.add("relays", SeverityInfo, "",
			fmt.Sprintf("%d of %s began before the newest migration was applied: they may be of an older version",
				old, plural(alive, "living relay")), "end the deploy, if it is not over yet")
	}
	if alive > 0 {
		v.add("relays", SeverityOK, "", plural(alive, "relay")+" alive", "")
	}
}

const (
	// The schemas whose relays this role may read.
	schemasSQL = `/* outbox: other schemas with relays */
SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'alive_until'
 WHERE c.relname = 'relay' AND c.relkind = 'r' AND n.nspname <> $1
   AND EXISTS (SELECT FROM pg_class o WHERE o.relnamespace = n.oid AND o.relname = 'headless_key')
   AND has_schema_privilege(n.oid, 'USAGE') AND has_column_privilege(c.oid, a.attnum, 'SELECT')
 ORDER BY n.nspname LIMIT 1000`
	livingSQL = `/* outbox: living relays of another schema */
SELECT count(*) FROM %s.relay WHERE alive_until > clock_timestamp()`
)

// elsewhere names up to three other schemas with living relays.
func (v *visit) elsewhere(ctx context.Context) (out []string, err error) {
	var name string
	var names []string
	err = v.each(ctx, schemasSQL, []any{v.schema}, []any{&name}, func() { names = append(names, name) })
	for _, name := range names {
		var n int64
		if err == nil && len(out) < 3 {
			err = v.tx.QueryRowContext(ctx, fmt.Sprintf(livingSQL, quote(name))).Scan(&n)
		}
		if n > 0 {
			out = append(out, fmt.Sprintf("%s in the schema %q", plural(n, "relay"), name))
		}
	}
	return out, err
}

func isReady(n int64) string { return plural(n, "task is ready", "tasks are ready") }
