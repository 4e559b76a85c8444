//go:build unix

package main

import (
	"fmt"
	"strings"
	"time"
)

// edit replaces a text that is in a file of the module.
type edit struct{ file, old, new string }

// mutant is a bug that a queue on PostgreSQL has had, and the run that must catch it.
type mutant struct {
	name   string
	help   string
	edits  []edit
	faults string
	length time.Duration
	every  time.Duration
	expect []string // what is wrong then: any of these
}

var mutants = []mutant{
	{"unfenced-claim", "a claim deletes a task more than its limit now and then, as one that is not fenced does, and nobody counts", []edit{
		{"schema/00011_cheaper_tasks.sql", "  DELETE FROM outbox.task t WHERE t.ctid = place\n", `  DELETE FROM outbox.task t WHERE random() < 0.01 AND t.task_id IN (
    SELECT n.task_id FROM outbox.task n WHERE n.state = 'ready' AND n.task_type = of_type AND n.ctid <> place LIMIT 1 FOR UPDATE SKIP LOCKED);
  DELETE FROM outbox.task t WHERE t.ctid = place
`},
	}, "none", 15 * time.Second, time.Second, []string{"lost tasks"}},
	{"failed-rollback-to", "ROLLBACK TO was not carried out, and the claim is committed all the same", []edit{
		{"relay/attempt.go", `"ROLLBACK TO SAVEPOINT "+a.savepoint+"; RELEASE SAVEPOINT "`, `"RELEASE SAVEPOINT "`},
	}, "none", 10 * time.Second, time.Second, []string{"duplicated effects"}},
	{"no-token", "a leased task is completed without its token", []edit{
		{"relay/lease.go", "SELECT 1 FROM outbox.task WHERE task_id = $1 AND lease_token = $2::uuid FOR UPDATE", "SELECT 1 FROM outbox.task WHERE task_id = $1 AND $2::uuid IS NOT NULL FOR UPDATE"},
		{"relay/lease.go", "DELETE FROM outbox.task WHERE task_id = $1 AND lease_token = $2::uuid", "DELETE FROM outbox.task WHERE task_id = $1 AND $2::uuid IS NOT NULL"},
		{"schema/00011_cheaper_tasks.sql", " AND t.lease_token = tokens[nth[width_bucket(t.task_id, ids)]]\n    RETURNING t.task_id)\n  SELECT array_agg(d.task_id) INTO more", "\n    RETURNING t.task_id)\n  SELECT array_agg(d.task_id) INTO more"},
	}, "freeze", 75 * time.Second, 8 * time.Second, []string{"leases that another", "duplicated effects", "keyed changes"}},
	{"retry-on-bad-connection", "a transaction is repeated when its connection breaks at COMMIT", []edit{
		{"intx.go", "		wake.All()\n		return fmt.Errorf(\"%w: %w\", ErrCommitUnknown, err)", "		return inTx(ctx, begin, fn)"},
	}, "commit", 20 * time.Second, 100 * time.Millisecond, []string{"ghosts", "business rows of"}},
	{"attempt-only-in-claim", "an attempt is counted in the claim's transaction only, so that the death of a process takes it back", []edit{
		{"relay/suspect.go", "			r.lost++\n", ""},
	}, "poison", 30 * time.Second, time.Second, []string{"poison that"}},
	{"client-clock", "a delay is added to the client's clock, which is two seconds behind", []edit{
		{"rare.go", "clock_timestamp() + %s::bigint * interval '1 microsecond', now())", "timestamptz 'epoch' + %s::bigint * interval '1 microsecond', now())"},
		{"rare.go", "s.after.Microseconds()", "time.Now().Add(s.after - 2*time.Second).UnixMicro()"},
	}, "none", 15 * time.Second, time.Second, []string{"delayed tasks that ran early"}},
	{"skip-running", "a keyed task is skipped though the one that has its key runs already", []edit{
		{"schema/00007_keys.sql", "      PERFORM FROM outbox.task t WHERE t.task_id = holder AND t.unique_until_done;\n      IF FOUND THEN\n        RETURN false;\n      END IF;", "      RETURN false;"},
	}, "none", 20 * time.Second, time.Second, []string{"keyed changes"}},
	{"cursor", "claims go on behind the last one and never back to what was committed late", []edit{
		{"relay/floor.go", "func (f *floors) forget() { f.of = nil }", "func (f *floors) forget() {}"},
		{"relay/floor.go", "	if one := f.of[h.class()]; one != nil && (f.random || h.compare(one.at) < 0) {", "	if one := f.of[h.class()]; one != nil && f.random {"},
	}, "none", 30 * time.Second, time.Second, []string{"tasks that are left"}},
}

func mutantHelp() string {
	var b strings.Builder
	for _, m := range mutants {
		fmt.Fprintf(&b, "%s (%s)\n", m.name, m.help)
	}
	return strings.TrimSuffix(b.String(), "\n")
}
