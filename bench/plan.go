package main

import "time"

// plan is how much a run does. Turns end when nothing is left, or after their limit; so a quick run takes about as long on
// any machine.
type plan struct {
	rounds  int
	backlog int           // of a burn-down
	large   int           // of the large one
	huge    int           // "10,000,000"
	burn    time.Duration // limit of a turn of what is compared
	short   time.Duration // limit of a turn of which there are many
	insert  time.Duration // limit of a turn whose handlers insert: a first second is for many sessions to plan in
	long    time.Duration // limit of the large burn-down

	enqueue    time.Duration // of a turn of single enqueues
	many       int           // tasks of a turn of bulk enqueues
	held       time.Duration
	heldWindow time.Duration
	pickups    int
	gap        time.Duration // between two of them, at most
	pollers    int           // databases with a relay that polls, side by side
	polls      int           // pickups by polling, in each of the relays that wait side by side
	claims     int           // timed in a turn
	idle       time.Duration
	mixed      time.Duration
	mixedTasks int
	walTasks   int           // in bulk; a fifth of it one by one
	infoRounds int           // of what is not compared with a target
	extras     bool          // what only informs, and takes long
	payload    int           // tasks of the payloads' case, in % of those of a quick run
	settle     time.Duration // until a relay sleeps at its full poll interval
}

func planOf(o options) plan {
	if o.quick {
		return plan{
			rounds: o.rounds, backlog: 200_000, large: 1_000_000, huge: 1_000_000, burn: 2500 * time.Millisecond, short: time.Second, insert: 3 * time.Second, long: 15 * time.Second,
			enqueue: 2500 * time.Millisecond, many: 50_000, held: 30 * time.Second, heldWindow: 5 * time.Second, pickups: 100, gap: 100 * time.Millisecond, pollers: 16, polls: 7, claims: 300,
			idle: 8 * time.Second, mixed: 3 * time.Second, mixedTasks: 200_000, walTasks: 10_000, infoRounds: 1, payload: 100, settle: 3 * time.Second,
		}
	}
	return plan{
		rounds: o.rounds, backlog: 200_000, large: 1_000_000, huge: 10_000_000, burn: 20 * time.Second, short: 8 * time.Second, insert: 8 * time.Second, long: 120 * time.Second,
		enqueue: 5 * time.Second, many: 250_000, held: 3 * time.Minute, heldWindow: 30 * time.Second, pickups: 600, gap: 400 * time.Millisecond, pollers: 16, polls: 15, claims: 2000,
		idle: 30 * time.Second, mixed: 10 * time.Second, mixedTasks: 1_000_000, walTasks: 50_000, infoRounds: o.rounds, extras: true, payload: 500, settle: 3 * time.Second,
	}
}
