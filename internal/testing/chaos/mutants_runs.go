//go:build unix

package main

import "time"

// loopMutants are noticed by a run of this program: bugs of the loop that claims and ends tasks.
var loopMutants = []mutant{
	{name: "unfenced-claim",
		help: "a claim deletes a task more than its limit now and then, as one that is not fenced does",
		edits: []edit{
			{"outbox.claim_tasks", "  setting := set_config('statement_timeout'",
				`  DELETE FROM outbox.task t WHERE random() < 0.01 AND t.task_id IN (
    SELECT n.task_id FROM outbox.task n WHERE n.state = 'ready' AND n.task_type = of_type
    LIMIT 1 FOR UPDATE SKIP LOCKED);
  setting := set_config('statement_timeout'`},
		}, run: chaosRun{"none", 15 * time.Second, time.Second, []string{"lost tasks"}}},
	{name: "failed-rollback-to", help: "ROLLBACK TO was not carried out, and the claim is committed all the same",
		edits: []edit{
			{"internal", `"ROLLBACK TO SAVEPOINT "+Savepoint+"; RELEASE SAVEPOINT "`, `"RELEASE SAVEPOINT "`},
		}, run: chaosRun{"none", 10 * time.Second, time.Second, []string{"duplicated effects"}}},
	{name: "retry-on-bad-connection", help: "a transaction is repeated when its connection breaks at COMMIT",
		edits: []edit{
			{"", "		wake.All()\n		return fmt.Errorf(\"%w: %w\", ErrCommitUnknown, err)", "		return inTx(ctx, begin, fn, opts)"},
		}, run: chaosRun{"commit", 20 * time.Second, 100 * time.Millisecond, []string{"ghosts", "business rows of"}}},
	{name: "attempt-only-in-claim",
		help: "an attempt is counted in the claim's transaction only, so that the death of a process takes it back",
		edits: []edit{
			{"", "			r.Lost++\n", ""},
		}, run: chaosRun{"poison", 30 * time.Second, time.Second, []string{"poison that"}}},
	{name: "client-clock", help: "a delay is added to the client's clock, which is two seconds behind", edits: []edit{
		{"", "clock_timestamp() + %s::bigint * interval '1 microsecond', now())",
			"timestamptz 'epoch' + %s::bigint * interval '1 microsecond', now())"},
		{"", "s.after.Microseconds()", "time.Now().Add(s.after - 2*time.Second).UnixMicro()"},
	}, run: chaosRun{"none", 15 * time.Second, time.Second, []string{"delayed tasks that ran early"}}},
	{name: "skip-running", help: "a keyed task is skipped though the one that has its key runs already", edits: []edit{
		{"outbox.take_key", "      PERFORM FROM outbox.task t WHERE t.task_id = holder AND t.unique_until_done;\n" +
			"      IF FOUND THEN\n        RETURN false;\n      END IF;", "      RETURN false;"},
	}, run: chaosRun{"none", 20 * time.Second, time.Second, []string{"keyed changes"}}},
	{name: "cursor", help: "claims go on behind the last one and never back to what was committed late", edits: []edit{
		{"", "now.Sub(w.since) > watermarkFor", "false"},
		{"", "one != nil && (random || at.Compare(one.at) < 0) {", "one != nil && random {"},
	}, run: chaosRun{"none", 30 * time.Second, time.Second, []string{"tasks that are left"}}},
}
