package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/schedule"
)

// ErrUnknownSchedule is returned for a name that is not in outbox.schedule.
var ErrUnknownSchedule = errors.New("relay: there is no such schedule")

const (
	removeScheduleSQL = `/* outbox: remove a schedule */
DELETE FROM outbox.schedule WHERE name = $1`
	pauseScheduleSQL = `/* outbox: pause or resume a schedule */
UPDATE outbox.schedule SET paused = $2 WHERE name = $1`
)

// RemoveSchedule removes a schedule by its name; tasks that it has enqueued stay. A relay that has
// it in its Config fires it no more, but adds it again when it starts, so deploy without it first.
// q is a transaction, with which it commits, or a *sql.DB; other pools are refused with
// outbox.ErrNoTransaction. schemaName is the outbox's schema if it is not "outbox". Errors:
// ErrUnknownSchedule, or the database's.
func RemoveSchedule(ctx context.Context, q outbox.Querier, name string, schemaName ...string) error {
	return changeSchedule(ctx, q, schemaName, removeScheduleSQL, name)
}

// PauseSchedule makes a schedule pass its firings over, for all relays, until [ResumeSchedule];
// restarts do not end it. Parameters and errors are as of RemoveSchedule.
func PauseSchedule(ctx context.Context, q outbox.Querier, name string, schemaName ...string) error {
	return changeSchedule(ctx, q, schemaName, pauseScheduleSQL, name, true)
}

// ResumeSchedule ends a pause. The firings that relays passed over meanwhile are not made up for.
// Parameters and errors are as of RemoveSchedule.
func ResumeSchedule(ctx context.Context, q outbox.Querier, name string, schemaName ...string) error {
	return changeSchedule(ctx, q, schemaName, pauseScheduleSQL, name, false)
}

func changeSchedule(ctx context.Context, q outbox.Querier, schemaName []string, query, name string, args ...any) error {
	in := pg.Schema(outbox.DefaultSchema)
	if len(schemaName) > 0 {
		in = pg.Schema(schemaName[0])
	}
	if len(schemaName) > 1 || !outbox.ValidSchema(string(in)) {
		return fmt.Errorf("relay: schemas %q: give one, a lower-case name like outbox", schemaName)
	}
	if err := schedule.CheckName(name); err != nil {
		return fmt.Errorf("relay: the name %.32q of a schedule: %w", name, err)
	}
	change := func(q outbox.Querier) error {
		result, err := q.ExecContext(ctx, in.SQL(query), append([]any{name}, args...)...)
		if err != nil {
			return fmt.Errorf("relay: change the schedule %q: %w", name, err)
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return errors.Join(fmt.Errorf("%w: %q", ErrUnknownSchedule, name), err)
		}
		return nil
	}
	if db, ok := q.(*sql.DB); ok { // a transaction of its own, as database/sql could send a statement of a pool twice
		return outbox.InTx(ctx, db, func(tx *sql.Tx) error { return change(tx) })
	}
	if _, pool := q.(interface{ SetMaxOpenConns(int) }); pool || q == nil {
		return fmt.Errorf("relay: change the schedule %q: %w: a %T is not one; of a *sqlx.DB pass the field DB", name, outbox.ErrNoTransaction, q)
	}
	return change(q)
}
