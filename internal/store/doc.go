// Package store is a task's row, and the statements that change it. It knows no handler.
//
//	Row      a claimed task: all that is needed to write it back
//	Change   what becomes of a task that is not done: WriteBack, WriteDead, RecordAside
//	Journal  the runs that have begun, in outbox.running, on a connection of its own
//	Store    the schema's name, the relay's id and the pool that statements go through
//
// Judge says what the journal's rows of earlier runs mean for a claimed task:
//
//	fresh ──> run
//	suspect ──> run, isolated from others by how many runs were lost
//	postponed ──> scheduled again, until heartbeats have decided
//	dead ──> dead letters
//
// A row of the journal is written between claim and handler and deleted by the claim's end:
//
//	Record ──> written ──claim ends────────> gone
//	              │──connection lost──────> marked: no attempt
//	              `──relay dies───────────> lost: an attempt, found by the next claim
package store
