// Package plan decides where claims begin, from what claims and polls have found. It does no I/O
// and has no clock of its own.
//
//	Position   a place in the order of a lane: priority, attempt, id
//	Head       the first task of a lane, as a poll found it
//	Start      where a claim begins, and in which order it takes tasks
//	Claim      a claim of a lane: its Start and its limit
//	Found      the result of a claim
//	Starts     of a lane: makes its claims, and learns from what they found
//	FullPolls  when a poll reads lanes from their heads, and finds tasks below a watermark
//
// A watermark moves on with claims, 20 ms behind them, and back to a head that a full poll finds
// below it:
//
//	none --100 tasks claimed--> at --claims--> further on
//	                             ^'--a head below--> back to the head
package plan
