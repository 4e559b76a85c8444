package relay

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Chooser decides which types a relay claims from when workers are free: Config.Chooser. [Fair] is
// the built-in one.
//
// Choose returns how many free workers each of v.Heads gets, by its index; a result that is shorter
// gives the others none. A worker runs one task, or one batch of a Batch handler. The relay asks
// again whenever something has changed: a worker became free, a claim came back, the lanes were
// polled (at least every 50 ms while there is work that was not chosen). So no is an answer, and
// not for long. Workers for a Leased type of which a claim is under way wait until that is back,
// for up to 50 ms; then they are claimed for together. A claim may find less than was expected, as
// other relays claim as well.
//
// A number below 0 counts as 0, one above Head.Room as Room, and what all get together is cut to
// v.Free; a panic gives this choice to the built-in order. Each relay logs that once. While the
// database fails, the built-in order is used.
//
// A relay makes one call of Choose at a time, and dispatches nothing meanwhile: it must not wait
// for anything. A Chooser that several relays share must be safe for concurrent use.
type Chooser interface {
	Choose(v View) []int
}

// View is what a Chooser decides from.
type View struct {
	Heads   []Head // types that have work and room, in the order of their names; valid during the call only
	Free    int    // workers that have nothing to do
	Workers int    // of the relay
	Types   int    // that the relay has handlers for
}

// Head is the lane of one task type, as of the last poll and what was claimed since.
type Head struct {
	Type     string
	Kind     string    // "tx", "batch" or "leased"
	Priority int       // of its most urgent task, with the base priority of the type; lower is more urgent
	RunAt    time.Time // when the first task of the lane became due, by the clock of this process
	Served   time.Time // when this relay claimed from it last; zero if never
	Running  int       // workers of this relay that are busy with it
	Room     int       // free workers that it may have, by Free and the limits of the type; at least 1
	Likely   int       // claims that will probably find a full load: 1 after a poll, more after each that did
}

// Fair returns the built-in order, for a Chooser that changes only something of it: the most urgent
// head first, equal ones at random; every tenth choice the head that has waited longest; and no
// single type holds all workers while there are other types. A Fair is not safe for concurrent use.
func Fair() Chooser { return &fairOrder{} }

// fairness is how often the lane that has waited longest is served before the most urgent one: no
// priority starves another.
const fairness = 10

type fairOrder struct {
	choices int
	best    []int
	out     []int
}

// Choose gives workers to one head.
func (f *fairOrder) Choose(v View) []int {
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
	if f.choices%fairness != 0 {
		chosen = f.best[rand.IntN(len(f.best))]
	}
	h := &v.Heads[chosen]
	n := 1
	if h.Kind == string(handler.KindLeased) { // one claim for all
		n = min(h.Room, share(v.Workers, v.Types)-h.Running)
		if heads > 1 {
			n = min(n, h.Likely)
		}
	}
	f.out[chosen] = n
	return f.out
}

func (h *Head) waitingSince() time.Time {
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

// appChooser asks a Chooser of the app's, of which anything may come.
type appChooser struct {
	chooser Chooser
	log     *slog.Logger
	told    bool
}

// choose is the Chooser's answer, made valid. It is fallback's after a panic.
func (g *appChooser) choose(v View, fallback Chooser) (out []int) {
	given := v // the Chooser may write into what it gets
	given.Heads = append([]Head(nil), v.Heads...)
	var answer []int
	if err := guard.Call(func() { answer = g.chooser.Choose(given) }); err != nil {
		g.tell("it panicked: "+pgerr.Text(err), "stack", string(guard.Stack(err)))
		return fallback.Choose(v)
	}
	if len(answer) > len(v.Heads) {
		g.tell(fmt.Sprintf("%d numbers for %d heads", len(answer), len(v.Heads)))
	}
	out = make([]int, len(v.Heads))
	free := v.Free
	for i := range min(len(answer), len(out)) {
		out[i] = max(min(answer[i], v.Heads[i].Room, free), 0)
		if out[i] != answer[i] {
			g.tell(fmt.Sprintf("%d workers for type %s, which may have %d", answer[i], v.Heads[i].Type, min(v.Heads[i].Room, free)))
		}
		free -= out[i]
	}
	return out
}

func (g *appChooser) tell(what string, attrs ...any) {
	if !g.told {
		g.told = true
		g.log.Error("outbox: invalid choice by Config.Chooser, corrected", append([]any{"answer", what}, attrs...)...)
	}
}
