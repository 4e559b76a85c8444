package upkeep

import "time"

const (
	// Interval is the time between two beats.
	Interval = 3 * time.Second
	// LeaseDuration is for how long a relay is alive after each beat.
	LeaseDuration = 10 * time.Second
	// TakeoverInterval is the least time between two takeovers. Without leases to be taken over a
	// relay looks for some once in Interval.
	TakeoverInterval = time.Second
	// TakenOverWithin is from a relay's death to the takeover by a relay that is up and not busy.
	TakenOverWithin = LeaseDuration + Interval + 2*TakeoverInterval
	// ReapInterval is how often a relay looks after what nobody needs any more.
	ReapInterval = 30 * time.Second

	takeoverAfter = 10 * time.Second // own unbroken beats before taking over from others
	// beatGap is what breaks them. Another relay's last beat before an outage may be an interval
	// older than the own, and its lease must not have run out when the own outage counts as none.
	beatGap = Interval + 2*TakeoverInterval

	partTimeout   = 1500 * time.Millisecond // of each part of a job, so that no beat is late
	refusedRest   = 10 * time.Second        // of a job that PostgreSQL refused: the others go on
	failedJobWait = 10 * time.Second        // of a shared job that PostgreSQL refused
)
