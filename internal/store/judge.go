package store

import (
	"fmt"
	"time"
)

// maxLostConnections is how many runs of a task may lose their connection before it is a dead
// letter: its SQL then probably kills its backend.
const maxLostConnections = 10

// Judgement is what earlier runs of a claimed task, known from the journal, mean for this one.
type Judgement int

const (
	Fresh        Judgement = iota // nothing happened before
	Suspect                       // a run was lost: run it with Isolation
	Postponed                     // wait until the heartbeats of its relays have decided
	DeadAttempts                  // lost runs have used up its attempts
	DeadLostConns
)

// Judge decides by the rows that earlier runs left. A run whose relay is dead was an attempt; one
// that lost its connection was none; one whose relay may still live is undecided. An undecided run
// alone does not hold the task up. With another lost or undecided run, or
// where they may have used up the attempts, the task waits until the heartbeats have decided.
func (r *Row) Judge(found []Earlier) (earlier Judgement, wait time.Duration) {
	conns := 0
	for _, e := range found {
		switch {
		case e.open: // its claim is gone, by its handler or its commit, and its result about to be recorded
			return Postponed, 100 * time.Millisecond
		case e.LostConn:
			conns++
		case e.alive <= 0:
			r.Lost++
		default:
			r.Undecided = append(r.Undecided, e.Token)
			wait = max(wait, e.alive)
		}
	}
	u := len(r.Undecided)
	r.Isolation = isolationOf(r.Lost+u, r.Max-r.Attempt-r.Lost-u)
	switch {
	case len(found) == 0 && !r.Exhausted():
		return Fresh, 0
	case conns >= maxLostConnections:
		return DeadLostConns, 0
	case r.Attempt+r.Lost >= r.Max:
		return DeadAttempts, 0
	case u > 0 && (r.Lost+u >= 2 || r.Attempt+r.Lost+u >= r.Max):
		return Postponed, wait + 100*time.Millisecond
	}
	return Suspect, 0
}

// JudgeLeased sets the Isolation of a leased task whose last run was lost with its relay, and
// reports whether an attempt is left.
func (r *Row) JudgeLeased() bool {
	r.Isolation = isolationOf(max(r.lostInARow(), 1), r.Max-r.Attempt)
	return !r.Exhausted()
}

// Exhausted reports whether all attempts were begun before, as far as the row itself tells.
func (r *Row) Exhausted() bool { return r.Attempt >= r.Max }

// Begun is the number of attempts begun, with the present one.
func (r *Row) Begun() int { return r.Attempt + r.Lost + 1 }

// LostText is the last error of a task whose runs were lost.
func (r *Row) LostText(earlier Judgement) error {
	if earlier == DeadLostConns {
		return fmt.Errorf("relay: %d runs of the task lost their connection to PostgreSQL", maxLostConnections)
	}
	if r.Lost == 0 {
		return fmt.Errorf("relay: all %d attempts were begun before", r.Max)
	}
	return fmt.Errorf("relay: the process died while it ran the task, %d times", r.Lost)
}
