// Package txrun runs Tx and Batch handlers: a claim's transaction, from BEGIN to COMMIT, deletes the
// tasks, and the handler works in it.
//
//	BEGIN; claim; SAVEPOINT; journal; handler; results; COMMIT
//
// Unit is the work in the transaction, which outboxtest shares; attempt is the claim of a relay around
// it. runner.go has the ends before the handler is called, failed.go those without COMMIT. With
// GroupCommit a claim locks several tasks; group.go deletes each and calls its handler in turn.
package txrun
