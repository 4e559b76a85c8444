package relay

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
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
func Fair() Chooser { return new(fair) }

type fair struct{ order plan.Fair }

// Choose gives workers to one head.
func (f *fair) Choose(v View) []int {
	heads := make([]plan.Candidate, len(v.Heads))
	for i, h := range v.Heads {
		heads[i] = plan.Candidate(h)
	}
	return f.order.Choose(plan.View{Heads: heads, Free: v.Free, Workers: v.Workers, Types: v.Types})
}

// appChooser asks a Chooser of the app's, of which anything may come.
type appChooser struct {
	chooser Chooser
	log     *slog.Logger
	told    bool
}

// choose is the Chooser's answer, made valid. It is not ok after a panic.
func (g *appChooser) choose(v plan.View) (out []int, ok bool) {
	given := View{Free: v.Free, Workers: v.Workers, Types: v.Types} // the Chooser may write into it
	for _, h := range v.Heads {
		given.Heads = append(given.Heads, Head(h))
	}
	var answer []int
	if err := guard.Call(func() { answer = g.chooser.Choose(given) }); err != nil {
		g.tell("it panicked: "+pgerr.Text(err), "stack", string(guard.Stack(err)))
		return nil, false
	}
	if len(answer) > len(v.Heads) {
		g.tell(fmt.Sprintf("%d numbers for %d heads", len(answer), len(v.Heads)))
	}
	out = make([]int, len(v.Heads))
	free := v.Free
	for i := range min(len(answer), len(out)) {
		h := &v.Heads[i]
		out[i] = max(min(answer[i], h.Room, free), 0)
		if out[i] != answer[i] {
			g.tell(fmt.Sprintf("%d workers for type %s, which may have %d", answer[i], h.Type, min(h.Room, free)))
		}
		free -= out[i]
	}
	return out, true
}

func (g *appChooser) tell(what string, attrs ...any) {
	if !g.told {
		g.told = true
		g.log.Error("outbox: invalid choice by Config.Chooser, corrected", append([]any{"answer", what}, attrs...)...)
	}
}
