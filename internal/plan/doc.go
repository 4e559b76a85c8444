// Package plan decides what the dispatcher of a relay does next, and where claims begin. It does no
// I/O and has no clock.
//
// [Dispatcher.Step] takes an [Event] and the present [Moment], and returns each [Action] that follows.
// The loop around it, in package relay, carries the actions out.
//
//	Dispatcher  polls, wake-ups, failures of the relay's own, free slots
//	lanes       chooses between the types: urgency, fairness, shares, limits
//	lane        the state of one type: credit, rests, claims under way
//	Outage      the pauses while PostgreSQL is unavailable
//	Starts      of a lane: makes its claims, and learns from what they found
//	Start       where a claim begins, and in which order it takes tasks
//	promotions  due tasks and keys without a head: a part at a time, beside claims
//	FullPolls   when a poll reads lanes from their heads, and finds tasks below a watermark
//
// A watermark moves on with claims, 20 ms behind them, and back to a head that a full poll finds
// below it:
//
//	none --100 tasks claimed--> at --claims--> further on
//	                             ^'--a head below--> back to the head
package plan
