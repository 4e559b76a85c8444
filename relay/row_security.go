package relay

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/schema"
)

// rowCheck is the job that looks whether row level security hides rows from the relay, which would
// find an outbox without tasks.
type rowCheck struct {
	schema string
	log    *slog.Logger
	found  func(hidden error) (before error) // for Health; it returns what was found before
}

func (c rowCheck) run(ctx context.Context, on *pg.Dedicated) (wait time.Duration, err error) {
	var hidden error
	err = on.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
		if hidden = schema.CheckRowSecurity(ctx, conn, schema.Schema(c.schema)); errors.Is(hidden, schema.ErrRowSecurity) {
			return nil
		}
		return hidden
	})
	if err != nil {
		return 0, err
	}
	switch before := c.found(hidden); {
	case hidden != nil && (before == nil || before.Error() != hidden.Error()):
		c.log.Error("outbox: the relay does not see all tasks", "error", hidden)
	case hidden == nil && before != nil:
		c.log.Info("outbox: no rows are hidden from the relay any more")
	}
	if hidden != nil {
		return upkeep.Interval, nil
	}
	return upkeep.ReapInterval, nil
}
