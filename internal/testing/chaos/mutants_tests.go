//go:build unix

package main

import "slices"

// testMutants are noticed by tests of the default suite.
var testMutants = slices.Concat(lockMutants, claimMutants, leaseMutants)

// lockMutants wait for a row that another transaction has locked, or miss its change.
var lockMutants = []mutant{
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
}

// claimMutants break the claims of Tx and Batch handlers, and their counters.
var claimMutants = []mutant{
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
}

// leaseMutants break leases.
var leaseMutants = []mutant{
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
