// Package plan decides where claims begin, from what claims and polls have found. It does no I/O
// and has no clock of its own.
//
//	Position    a place in the order of a lane: priority, attempt, id
//	Head        the first task of a lane, as a poll found it
//	Watermarks  of a lane: the positions below which all was claimed; claims begin there
//	Oldest      of a lane: where the claims begin that go by due time
//	FullPolls   when a poll reads lanes from their heads, and finds what is below a watermark
//
// A watermark moves on with claims, 20 ms behind them, and back to a head that a full poll finds
// below it:
//
//	none --100 tasks claimed--> at --claims--> further on
//	                             ^'--a head below--> back to the head
package plan
