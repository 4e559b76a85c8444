package txrun

import (
	"context"

	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/store"
)

// Params are what a Runner needs.
type Params struct {
	Store    *store.Store
	Report   *report.Reporter
	Journal  *store.Journal
	Suspects *decide.Suspects
	Claiming context.Context // ends when claiming is to stop
	Handling context.Context // ends when the drain timeout has passed
}

func (p *Params) stopping() bool { return p.Claiming.Err() != nil }
