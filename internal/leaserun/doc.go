// Package leaserun runs Leased handlers. A claim commits before its handlers run; each run has a
// lease, whose token fences its result:
//
//	claimed → running → ended → its result waits for a group → written
//	             ↓ lease lost, canceled, drained, timeout: its context ends
//	             ↓ 5 s later: abandoned
//
// claim.go claims, run.go has one run, leases.go all runs of a relay, complete.go Task.Complete,
// results.go the groups of results.
package leaserun
