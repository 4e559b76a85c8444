// Package upkeep is what a relay does beside its tasks: it says that it lives, and looks after what
// all relays share.
//
//	Heartbeat  beats every 3 s; between two beats it does due jobs, on the same connection
//	Job        each relay does it: take over, reap, sweep keys, report unhandled types, those of the
//	           relay's other parts, and maintain, which does the shared jobs
//	SharedJob  one relay of all does it, when its row in outbox.maintenance is due: fold,
//	           purge history, purge inbox, purge dead letters, sample
//
// All of it commits asynchronously, so no beat waits for the disk or a synchronous standby: each is
// done again if a crash of the server loses it. What must be durable, as a result, a claim of a Tx
// task or the firing of a schedule, goes over other connections.
//
// A relay claims only while its latest beat is younger than LeaseDuration. It takes over from
// others only after unbroken beats of that length, as after an outage all relays look dead:
//
//	started --beats for 10 s--> settled --a gap or a restore--> started
//	alive   --10 s without a beat--> not alive: leased handlers end, nothing is claimed --a beat--> alive
package upkeep
