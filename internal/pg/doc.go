// Package pg is how a relay talks to PostgreSQL: connections, transactions, messages, LISTEN, and
// outages. It knows no task.
//
//	Pool       lends connections to workers: InTx, InMessages; BeginSession for the app's code
//	Dedicated  is the one connection of a loop
//	Exclusive  is a connection that nobody else can use meanwhile
//	Listener   turns notifications into polls
//	Outage     paces the dispatcher while PostgreSQL is unavailable; Pace paces the other loops
//
// An outage begins with the first failure that is more than the end of single connections, and ends
// with the first success that began after it:
//
//	none --Fail--> pause --Wait over--> try --Fail--> pause …
//	                 |                   `----OK----> none
//	                 `--Hasten, EndPause: the pause ends soon
//
// A relay writes in a transaction or on a held connection, never through *sql.DB, which repeats a
// statement when its connection breaks.
package pg
