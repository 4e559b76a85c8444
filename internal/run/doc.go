// Package run runs tasks: it claims them, calls their handlers, decides what becomes of them, and
// records that. Package relay says when to claim; package outboxtest runs tasks in a test's
// transaction.
//
// A Tx or Batch claim is a [Runner]'s attempt. Its unit of work, from the claim to the
// results, is shared with outboxtest:
//
//	BEGIN  claim  SAVEPOINT  journal  handler  decide
//	  keep:       constraints, session, RELEASE, probe; results; COMMIT
//	  undo:       ROLLBACK TO, RELEASE, probe; results; COMMIT
//	  split:      ROLLBACK; the tasks run one by one
//	  cancel:     ROLLBACK TO; DELETE; COMMIT; of a batch ROLLBACK, then DELETE
//	  give back:  ROLLBACK
//
// With GroupCommit a claim locks several tasks. group.go deletes one after the other and calls its
// handler, each under a savepoint.
//
// A Leased claim is committed before its handlers run. Each of its runs has a lease:
//
//	claimed → running → ended → its result waits for a group → written
//	             ↓ lease lost, canceled, drained, timeout: its context ends
//	             ↓ 5 s later: abandoned
//
// The function decide says what becomes of a task, for all kinds and for outboxtest.
//
// Tx and Batch: claim.go has what happens in the transaction of a claim, attempt.go the claim of a
// relay from BEGIN to COMMIT, judged.go what earlier runs left, failed.go all other ends.
// verdicts.go writes what becomes of tasks. guard.go proves that a transaction is still the
// claim's.
//
// Leased: leased.go claims, leased_run.go has one run, leases.go all of a relay, complete.go
// Task.Complete, transition.go how a lease ends, result_groups.go the groups of results.
//
// suspect.go says which tasks may run beside each other whose process died before.
//
// step.go and its like run tasks for outboxtest.
package run
