// Package apptx has the transactions that remove tasks and in which the app's code writes: claims of
// Tx and Batch handlers, and Task.Complete, in relays and in outboxtest.
//
//	Begin or Within ──> Take: removes the tasks; SAVEPOINT ──> the app's code
//	End:     keep       constraints, session, RELEASE, probe; results; COMMIT
//	         undo       ROLLBACK TO, RELEASE, probe; results; COMMIT
//	         roll back  ROLLBACK TO, RELEASE, probe; ROLLBACK
//	Abandon: ROLLBACK beside code that is still running
//
// The probe proves that the transaction is still the one that removed the tasks, and that nothing in
// it failed unseen. End never sends COMMIT when in doubt: it rolls back and closes the connection.
package apptx
