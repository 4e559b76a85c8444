// Package schedule fires recurring tasks: it computes when a schedule fires next, and enqueues a
// task then.
//
//	Schedule   one of Config.Schedules, checked
//	Scheduler  registers the schedules of one relay and fires what is due
//
// A schedule is a row of outbox.schedule. Its next_at moves on only in the transaction that
// enqueues the firing's task and holds the row's lock, so each firing enqueues one task, however
// many relays have the schedule:
//
//	register ──> next_at set ──due: enqueue──> next_at moved on ──> …
//	                 │   `──paused, due──────> next_at moved on      no task
//	                 `──Next gives no time───> next_at NULL          ended
//
// All times are PostgreSQL's. The definition, a hash of the spec, the task and the catch-up, tells
// relays whose code knows another form of a schedule apart: they leave it alone.
//
// Package relay is its only caller.
package schedule
