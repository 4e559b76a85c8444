package relay

import (
	"fmt"
	"time"
)

// maxLostConnections is how many runs of a task may lose their connection before it is a dead
// letter: its SQL then probably kills its backend.
const maxLostConnections = 10

// verdict is what earlier runs of a claimed task, known from the journal, mean for this one.
type verdict int

const (
	plain        verdict = iota // nothing happened before
	suspect                     // a run was lost: run it solo
	postponed                   // wait until the heartbeats of its relays have decided
	deadAttempts                // lost runs have used up its attempts
	deadLostConns
)

// judge decides by the rows that earlier runs left. A run whose relay is dead was an attempt; one
// that lost its connection was none; one whose relay may still live is undecided. An undecided run
// alone does not hold the task up: it runs as a suspect. With another lost or undecided run, or
// where they may have used up the attempts, the task waits until the heartbeats have decided.
func (r *row) judge(found []earlier) (v verdict, wait time.Duration) {
	conns := 0
	for _, e := range found {
		switch {
		case e.open: // its claim is gone, by its handler or its commit, and its result about to be recorded
			return postponed, 100 * time.Millisecond
		case e.lostConn:
			conns++
		case e.alive <= 0:
			r.lost++
		default:
			r.undecided = append(r.undecided, e.token)
			wait = max(wait, e.alive)
		}
	}
	switch u := len(r.undecided); {
	case len(found) == 0 && !r.exhausted():
		return plain, 0
	case conns >= maxLostConnections:
		return deadLostConns, 0
	case r.attempt+r.lost >= r.max:
		return deadAttempts, 0
	case u > 0 && (r.lost+u >= 2 || r.attempt+r.lost+u >= r.max):
		return postponed, wait + 100*time.Millisecond
	}
	return suspect, 0
}

// exhausted reports whether all attempts were begun before, as far as the row itself tells.
func (r *row) exhausted() bool { return r.attempt >= r.max }

// begun is the number of attempts begun, with the present one.
func (r *row) begun() int { return r.attempt + r.lost + 1 }

// lostText is the last error of a task whose runs were lost.
func (r *row) lostText(v verdict) error {
	if v == deadLostConns {
		return fmt.Errorf("relay: %d runs of the task lost their connection to PostgreSQL", maxLostConnections)
	}
	if r.lost == 0 {
		return fmt.Errorf("relay: all %d attempts were begun before", r.max)
	}
	return fmt.Errorf("relay: the process died while it ran the task, %d times", r.lost)
}
