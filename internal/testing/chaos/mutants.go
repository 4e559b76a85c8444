//go:build unix

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

var mutants = slices.Concat(runMutants, testMutants)

// chosenMutants are those that -mutation names: all, runs, tests, or names with commas.
func chosenMutants(list string) (chosen []mutant, err error) {
	switch list {
	case "all":
		return mutants, nil
	case "runs":
		return runMutants, nil
	case "tests":
		return testMutants, nil
	}
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		i := slices.IndexFunc(mutants, func(m mutant) bool { return m.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-mutation: there is no %q; there are all, runs, tests and\n%s", name, mutantHelp())
		}
		chosen = append(chosen, mutants[i])
	}
	return chosen, nil
}

func mutantHelp() string {
	var b strings.Builder
	for _, m := range mutants {
		fmt.Fprintf(&b, "%s (%s)\n", m.name, m.help)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// runMutants are noticed by a run of this program.
var runMutants = []mutant{
	// The loop that claims and ends tasks.
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
	{name: "lost-result", help: "the results of leased tasks are not written to the history",
		edits: []edit{
			{"internal", "outcomes[i], results[i] = e.Finish.Outcome, e.Finish.Result",
				`outcomes[i], results[i] = e.Finish.Outcome, ""`},
		}, run: chaosRun{"none", 10 * time.Second, time.Second, []string{"results that are lost, or another task's"}}},
	{name: "one-codec", help: "payloads are decoded by the codec that writes, whichever wrote them", edits: []edit{
		{"internal/codec", "return s.byName[name], nil", "return s.byName[s.writes], nil"},
	}, run: chaosRun{"none", 10 * time.Second, time.Second, []string{"lost tasks", "dead letters that should not be"}}},
	{name: "retry-on-bad-connection", help: "a transaction is repeated when its connection breaks at COMMIT",
		edits: []edit{
			{"", "		wake.All()\n		return fmt.Errorf(\"%w: %w\", ErrCommitUnknown, err)", "		return inTx(ctx, begin, fn, opts)"},
		}, run: chaosRun{"commit", 20 * time.Second, 100 * time.Millisecond, []string{"ghosts", "business rows of"}}},
	{name: "attempt-only-in-claim",
		help: "an attempt is counted in the claim's transaction only, so that the death of a process takes it back",
		edits: []edit{
			{"", "			r.Lost++\n", ""},
		}, run: chaosRun{"poison", 30 * time.Second, time.Second, []string{"poison that"}}},
	{name: "one-more", help: "a key has a place more than its limit", edits: []edit{
		{"outbox.promote_places", "COALESCE(l.max_running_per_key, 1) AS places",
			"COALESCE(l.max_running_per_key, 1) + 1 AS places"},
	}, run: chaosRun{"none", 20 * time.Second, time.Second, []string{"tasks of a key"}}},
	{name: "no-request", help: "the end of a task gives its place to nobody", edits: []edit{
		{"outbox.task_removed", "OR outbox.request_promotion(task_type, ordering_key, group_key)\n   LIMIT 3",
			"OR ordering_key IS NULL OR outbox.request_promotion(task_type, ordering_key, group_key)\n   LIMIT 3"},
	}, run: chaosRun{"none", 20 * time.Second, time.Second, []string{"tasks that are left", "I14"}}},
	{name: "late", help: "a claim does not see that a task has expired", edits: []edit{
		{"outbox.rest", "'past_expiry', t.expires_at", "'past_expiry', false AND t.expires_at"},
	}, run: chaosRun{"none", 20 * time.Second, time.Second, []string{"tasks that began after"}}},
	{name: "period", help: "a unique key is free before the end of its period", edits: []edit{
		{"outbox.take_key", "IF kept THEN", "IF false THEN"},
	}, run: chaosRun{"none", 20 * time.Second, time.Second, []string{"unique keys that were used twice"}}},
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

	// Faults of a part that are taken for those of the whole, or for ones that do not pass.
	{name: "sign-in-twice", help: "the publisher closes for good after two refused logins", edits: []edit{
		{"", "nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),", "nats.MaxReconnects(-1),"},
		{"", "if p.dial != nil && p.link.js.Conn().IsClosed() {", "if false {"},
	}, run: chaosRun{"password", 15 * time.Second, 3 * time.Second, []string{"lost tasks"}}},
	{name: "full-for-good", help: "an event for a stream that is full is a dead letter", edits: []edit{
		{"", "return forward.TargetUnavailable(err, 0)\n	case accountLimit",
			"return forward.Permanent(err)\n	case accountLimit"},
	}, run: chaosRun{"target", 15 * time.Second, 2 * time.Second, []string{"dead letters that should not be"}}},
	{name: "waiting-beat", help: "a heartbeat's commit waits for a standby that is away", edits: []edit{
		{"", "FROM outbox.identity), ''), ` + pg.CommitAsync", "FROM outbox.identity), ''), ''`"},
	}, run: chaosRun{"standby", 30 * time.Second, 3 * time.Second, []string{"attempts that nothing",
		"calls that nothing"}}},
	{name: "trusted-wake-up",
		help: "a type rests when a claim fails that only a wake-up asked for, whose numbers nobody checks", edits: []edit{
			{"", "strconv.ParseInt(words[0], 10, 16)", "strconv.ParseInt(words[0], 10, 64)"},
			{"", "	claim.Named = true\n", ""},
		}, run: chaosRun{"forged", 15 * time.Second, 2 * time.Second, []string{"errors that relays"}}},
	{name: "first-in-line", help: "a task that cannot be read stays where it is, before all others of its type",
		edits: []edit{
			{"", "	if find() == 0 {\n", "	if true {\n"},
		}, run: chaosRun{"unreadable", 10 * time.Second, 2 * time.Second, []string{"unreadable tasks"}}},
	{name: "known-by-file", help: "a database is known by the file of a table, which maintenance replaces",
		edits: []edit{
			{"outbox.this_database", "table_oid := 'outbox.origin'::regclass;",
				"table_oid := pg_relation_filenode('outbox.origin');"},
		}, run: chaosRun{"rewrite", 20 * time.Second, time.Second, []string{"tasks that are left"}}},
	{name: "no-comparison", help: "a relay never compares the leases of its memory with those of the tables",
		edits: []edit{
			{"", "	if since.Equal(c.since) && time.Since(c.at) < upkeep.ReapInterval {\n", "	if true {\n"},
		}, run: chaosRun{"restore", 15 * time.Second, time.Second, []string{"tasks that are left"}}},
	{name: "no-guard", help: "a relay works with the settings that its sessions begin with",
		edits: []edit{
			{"internal/pg", "p.guarded.Store(true)", "p.guarded.Store(false)"},
		}, run: chaosRun{"settings", 5 * time.Second, time.Second, []string{"relays that stand still"}}},
	{name: "believes-next", help: "a firing that a clock has put off by a day stays there", edits: []edit{
		{"", "	if time.Duration(next-one.now)*time.Microsecond < farAhead {\n", "	if true {\n"},
	}, run: chaosRun{"ahead", 15 * time.Second, 5 * time.Second, []string{"schedules that stopped"}}},
	{name: "blames-lock", help: "a lock on the journal that outlasts the end of a claim is the handler's failure",
		edits: []edit{
			{"", `return pgerr.Code(gone) == "3B001", err`, `return gone == nil && false, err`},
		}, run: chaosRun{"lock", 40 * time.Second, 2 * time.Second, []string{"attempts that"}}},
}

// testMutants are noticed by tests of the default suite.
var testMutants = []mutant{
	// A row that another transaction has locked is waited for, or its change is missed.
	{name: "waiting-claim", help: "a claim of Tx or Batch tasks waits for a locked row",
		tests: testRun{"internal/store", "TestAClaimBeginsAtItsPlaceAndGoesOnInItsOrder$"}, edits: []edit{
			{"outbox.claim_tasks", "t.attempt, t.task_id LIMIT up_to FOR UPDATE SKIP LOCKED)\n    DELETE",
				"t.attempt, t.task_id LIMIT up_to FOR UPDATE)\n    DELETE"},
			{"outbox.claim_tasks", "t.attempt, t.task_id LIMIT up_to FOR UPDATE SKIP LOCKED);\n    ELSE",
				"t.attempt, t.task_id LIMIT up_to FOR UPDATE);\n    ELSE"},
			{"outbox.claim_group", "BY t.priority, t.attempt, t.task_id LIMIT up_to FOR UPDATE SKIP LOCKED",
				"BY t.priority, t.attempt, t.task_id LIMIT up_to FOR UPDATE"},
		}},
	{name: "waiting-lease", help: "a claim of leased tasks waits for a locked row",
		tests: testRun{"internal/store", "TestAClaimBeginsAtItsPlaceAndGoesOnInItsOrder$"}, edits: []edit{
			{"outbox.lease_tasks", "BY t.priority, t.attempt, t.task_id LIMIT up_to FOR UPDATE SKIP LOCKED",
				"BY t.priority, t.attempt, t.task_id LIMIT up_to FOR UPDATE"},
		}},
	{name: "waiting-takeover", help: "a takeover from dead relays waits for a locked row",
		tests: testRun{"relay", "TestATakeoverWaitsForNoRow$"}, edits: []edit{
			{"", "ANY ($1::uuid[])\n   LIMIT 1000 FOR UPDATE SKIP LOCKED",
				"ANY ($1::uuid[])\n   LIMIT 1000 FOR UPDATE"},
		}},
	{name: "waiting-expiry", help: "the end of leases that ran out waits for a locked row",
		tests: testRun{"relay", "TestATakeoverWaitsForNoRow$"}, edits: []edit{
			{"", "leased_until < clock_timestamp()\n   LIMIT 1000 FOR UPDATE SKIP LOCKED",
				"leased_until < clock_timestamp()\n   LIMIT 1000 FOR UPDATE"},
		}},
	{name: "waiting-promotion", help: "the promotion of scheduled tasks waits for a locked row",
		tests: testRun{"relay", "TestPromotingWaitsForNoRow$"}, edits: []edit{
			{"relay", "FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE"},
		}},
	{name: "blind-slot", help: "a slot is taken without comparing it with what was seen before its lock",
		tests: testRun{"relay", "TestASlotThatIsFilledWhileAClaimReachesItIsNotFree$"}, edits: []edit{
			{"", " AND f.lease_token IS NOT DISTINCT FROM s.lease_token\n", "\n"},
		}},
	{name: "one-pass-over-a-key",
		help:  "the task of a unique key is read once, and a retry that is written back is missed",
		tests: testRun{".", "TestARetryThatIsWrittenBackDuringAnEnqueueHoldsItsKey$"}, edits: []edit{
			{"outbox.lock_waiting", "FOR pass IN 1..2 LOOP", "FOR pass IN 1..1 LOOP"},
		}},

	// The claims of Tx and Batch handlers, and their counters.
	{name: "no-ageing", help: "no claim goes by due time",
		tests: testRun{"internal/plan", "TestEachTenthClaimGoesByDueTime$"}, edits: []edit{
			{"", "	if s.turns < dueTurn-1 {\n", "	if true {\n"},
		}},
	{name: "paused-claim", help: "a claim by name does not ask whether its type is paused",
		tests: testRun{"internal/store", "TestAClaimTakesOnlyReadyTasksOfItsTypeThatNobodyHolds$"}, edits: []edit{
			{"", "task_type = $1 AND paused)", "task_type = $1 AND paused AND false)"},
		}},
	{name: "no-release", help: "a claim ends without RELEASE of its savepoint, so its end goes on in no transaction",
		tests: testRun{"relay", "TestAHandlerThatRollsItsClaimBackStaysInTheJournalUntilThatIsRecorded$"}, edits: []edit{
			{"", "statements+t.session.Restore+releaseSavepoint+p.Statements", "statements+t.session.Restore+p.Statements"},
		}},
	{name: "no-journal", help: "the journal of runs gets no rows",
		tests: testRun{"relay", "TestABatchIsOneRowOfTheJournal$"}, edits: []edit{
			{"", "	j.in <- r\n", "	r.reply <- journalReply{}\n"},
		}},
	{name: "panic-is-success", help: "a handler that panics has returned nil",
		tests: testRun{"relay", "TestObserversHearWhatBecomesOfEachTaskOfEachKind$"}, edits: []edit{
			{"", "			err = newPanic(panicked)\n", "			err = nil\n"},
		}},
	{name: "writable-failure", help: "the transaction that records a failure is open to a goroutine of the handler's",
		tests: testRun{"relay", "TestAGoroutineThatOutlivesItsHandlerChangesNothingOfItsResult$"}, edits: []edit{
			{"internal/txrun/unit.go", `c.ExecContext(ctx, "SET TRANSACTION READ ONLY")`, `c.ExecContext(ctx, "SELECT 1")`},
		}},
	{name: "any-iteration", help: "a failure that is recorded late counts against a later iteration of its task",
		tests: testRun{"relay", "TestALateFailureOfAnEarlierIterationLeavesTheNextOneAlone$"}, edits: []edit{
			{"", "attempt = $2 AND iterations = $3 AND", "attempt = $2 AND $3::integer IS NOT NULL AND"},
		}},
	{name: "unknown-is-failure", help: "a COMMIT whose outcome is unknown is a failure of the handler's",
		tests: testRun{"relay", "TestACommitOfUnknownOutcomeCostsNoAttemptAndRepeatsNoEffect$"}, edits: []edit{
			{"", "	case !pgerr.CommitFailed(e.Err):", "	case false:"},
		}},
	{name: "blames-handler",
		help:  "a timeout of the relay's own statement after the handler's work is the handler's failure",
		tests: testRun{"relay", "TestALockOnATableOfTheOutboxIsNoAttempt$"}, edits: []edit{
			{"", `return pgerr.Code(gone) == "3B001", err`, `return gone == nil && false, err`},
		}},
	{name: "uncounted-delete", help: "the counters are not told of a task that is deleted",
		tests: testRun{"relay", "TestEachTaskOfEachKindRunsOnce$"}, edits: []edit{
			{"outbox.task_removed", "SELECT (-1)::bigint, 0::bigint,", "SELECT 0::bigint, 0::bigint,"},
		}},
	{name: "no-fallback", help: "a watermark does not fall back to a task that was committed late below it",
		tests: testRun{"internal/plan", "TestAClaimBeginsWhereTheClaimsBeforeItTell$"}, edits: []edit{
			{"", "one != nil && (random || at.Compare(one.at) < 0) {", "one != nil && random {"},
		}},

	// Leases.
	{name: "unmarked-takeover", help: "a takeover drops the dead relay's mark, so that the task is no suspect",
		tests: testRun{"relay", "TestATakeoverWaitsForNoRow$"}, edits: []edit{
			{"internal/upkeep", "relay_id = t.relay_id,", "relay_id = NULL,"},
		}},
	{name: "tokenless-finish", help: "leased tasks that are done are deleted without their tokens",
		tests: testRun{"relay", "TestEndsOfLeasesFollowTheTaskAndNotItsPlace$"}, edits: []edit{
			{"outbox.finish_tasks",
				"ids[width_bucket(t.task_id, ids)]\n       AND t.lease_token = tokens[nth[width_bucket(t.task_id, ids)]]",
				"ids[width_bucket(t.task_id, ids)]"},
			{"outbox.finish_tasks", "ANY (ids) AND t.lease_token = tokens[nth[width_bucket(t.task_id, ids)]]", "ANY (ids)"},
		}},
	{name: "tokenless-complete", help: "task.Complete deletes a leased task without its token",
		tests: testRun{"relay", "TestCompleteAfterTheLossOfTheLease$"}, edits: []edit{
			{"outbox.complete_task", "AND t.lease_token = of_token", "AND of_token IS NOT NULL"},
		}},
	{name: "tokenless-extend", help: "a lease is extended without its token",
		tests: testRun{"relay", "TestExtendAfterTheLossOfTheLease$"}, edits: []edit{
			{"", "interval '1 microsecond') END\n WHERE task_id = $1 AND lease_token = $2::uuid",
				"interval '1 microsecond') END\n WHERE task_id = $1 AND $2::uuid IS NOT NULL"},
		}},
	{name: "no-heartbeat", help: "a relay beats once and then no more",
		tests: testRun{"relay", "TestGuaranteesInTime$/^a_late_heartbeat"}, edits: []edit{
			{"", "nextBeat = now.Add(Interval)", "nextBeat = now.Add(1000 * Interval)"},
		}},
	{name: "early-takeover", help: "leases are taken over before their relays had the time to renew them after an outage",
		tests: testRun{"internal/upkeep", "TestTakeoverWaitsForUnbrokenHeartbeats$"}, edits: []edit{
			{"",
				"s.last.Sub(s.first) >= takeoverAfter-Interval && now.Sub(s.first) >= takeoverAfter && ", ""},
		}},
	{name: "blind-beat", help: "a relay does not see that its database was replaced by a copy",
		tests: testRun{"relay", "TestARelayWhoseDatabaseBecomesACopyStopsAndBeginsAgain$"}, edits: []edit{
			{"", "s WHERE s.refused)", "s WHERE s.refused AND false)"},
		}},
	{name: "copy-by-name", help: "a restored dump passes for the original where the oids are the same",
		tests: testRun{"schema", "TestTheOwnDatabaseIsKnownByWhatItKeeps$"}, edits: []edit{
			{"outbox.origin_state", " AND COALESCE(o.mark = this.mark, false)", ""},
		}},
	{name: "copy-by-template", help: "a copy by TEMPLATE passes for the original, with the tasks that wait",
		tests: testRun{"schema", "TestNoToolMakesADatabaseACopyNorACopyTheOriginal$"}, edits: []edit{
			{"outbox.origin_state", "OR NOT outbox.waits(0)", "OR true"},
		}},
}
