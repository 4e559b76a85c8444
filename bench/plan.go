package main

import "time"

// plan is how much a run does. A turn ends when nothing is left, or after its limit. So a quick run
// takes about as long on any machine.
type plan struct {
	rounds  int
	backlog int
	large   int           // backlog of the case burndown-large
	huge    int           // the largest backlog of claim and memory
	burn    time.Duration // limit of a turn of burndown
	short   time.Duration // limit of a turn of cases that have many
	insert  time.Duration // limit of a turn of insert, whose first second goes into planning of many sessions
	long    time.Duration // limit of a turn of burndown-large

	enqueue    time.Duration // of a turn of single enqueues
	many       int           // tasks of a turn of bulk enqueues
	held       time.Duration
	heldWindow time.Duration
	dead       time.Duration // of enqueues, in a turn
	pickups    int
	gap        time.Duration // between two pickups, at most
	pollers    int           // databases with a relay that polls, side by side
	polls      int           // pickups by each of them
	claims     int           // timed in a turn
	idle       time.Duration
	walTasks   int           // in bulk; a fifth of it one by one
	settle     time.Duration // until a relay sleeps at its full poll interval
}

func planOf(quick bool, rounds int) plan {
	p := plan{
		rounds: rounds, backlog: 200_000, large: 1_000_000, huge: 1_000_000,
		burn: 2 * time.Second, short: time.Second, insert: 2200 * time.Millisecond, long: 15 * time.Second,
		enqueue: 1600 * time.Millisecond, many: 50_000, held: 20 * time.Second,
		heldWindow: 5 * time.Second, dead: 9 * time.Second,
		pickups: 90, gap: 100 * time.Millisecond, pollers: 16, polls: 7, claims: 300,
		idle: 8 * time.Second, walTasks: 10_000, settle: 3 * time.Second,
	}
	if quick {
		return p
	}
	p.huge = 10_000_000
	p.burn, p.short, p.insert, p.long = 20*time.Second, 8*time.Second, 8*time.Second, 120*time.Second
	p.enqueue, p.many, p.held, p.heldWindow = 5*time.Second, 250_000, 3*time.Minute, 30*time.Second
	p.dead = 20 * time.Second
	p.pickups, p.gap, p.polls, p.claims = 600, 400*time.Millisecond, 15, 2000
	p.idle, p.walTasks = time.Minute, 50_000
	return p
}
