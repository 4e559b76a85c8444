package plan

import (
	"math/rand/v2"
	"time"
)

// View is the lanes that a relay may claim from.
type View struct {
	Heads   []Candidate // valid until the next Step
	Free    int         // workers that have nothing to do
	Workers int         // of the relay
	Types   int         // that the relay has handlers for
}

// Candidate is a lane that has tasks and room, as of the last poll and the claims since.
type Candidate struct {
	Type     string
	Kind     string
	Priority int       // of its most urgent task, with the base priority of the type; lower is more urgent
	RunAt    time.Time // when the first task of the lane became due
	Served   time.Time // when this relay claimed from it last; zero if never
	Running  int       // workers of this relay that are busy with it
	Room     int       // free workers that it may have
	Likely   int       // claims that will probably be full
}

// dispatchTurn is how often the lane that has waited longest is served before the most urgent lane: no
// priority starves another.
const dispatchTurn = 10

// Fair chooses the most urgent lane, equal lanes at random, and each tenth time the lane that has waited
// longest. No type holds all workers while there are others.
type Fair struct {
	choices int
	best    []int
	out     []int
}

// Choose gives workers to one lane.
func (f *Fair) Choose(v View) []int {
	f.best, f.out = f.best[:0], append(f.out[:0], make([]int, len(v.Heads))...)
	oldest, heads := -1, 0
	for i := range v.Heads {
		h := &v.Heads[i]
		if min(h.Room, share(v.Workers, v.Types)-h.Running) <= 0 {
			continue
		}
		heads++
		switch {
		case len(f.best) == 0 || h.Priority < v.Heads[f.best[0]].Priority:
			f.best = append(f.best[:0], i)
		case h.Priority == v.Heads[f.best[0]].Priority:
			f.best = append(f.best, i)
		}
		if oldest < 0 || h.waitingSince().Before(v.Heads[oldest].waitingSince()) {
			oldest = i
		}
	}
	if heads == 0 {
		return nil
	}
	f.choices++
	chosen := oldest
	if f.choices%dispatchTurn != 0 {
		chosen = f.best[rand.IntN(len(f.best))]
	}
	h := &v.Heads[chosen]
	n := 1
	if h.Kind == leasedKind { // one claim for all
		n = min(h.Room, share(v.Workers, v.Types)-h.Running)
		if heads > 1 {
			n = min(n, h.Likely)
		}
	}
	f.out[chosen] = n
	return f.out
}

func (h *Candidate) waitingSince() time.Time {
	if h.RunAt.After(h.Served) {
		return h.RunAt
	}
	return h.Served
}

// share is how many workers one type may hold: all but one, while there are other types, so that
// one type cannot stop another.
func share(workers, types int) int {
	if types > 1 && workers > 1 {
		return workers - 1
	}
	return workers
}
