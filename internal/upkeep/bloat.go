package upkeep

import (
	"context"
	"database/sql"
	"log/slog"
	"strings"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/vacuum"
)

const (
	bloatInterval = time.Minute
	bloatRepeat   = 15 * time.Minute // between two warnings
	bloatDead     = 10_000           // dead tuples of one table
	bloatSnapshot = 5 * time.Minute  // how old a snapshot must be that keeps them
	bloatBehind   = 50_000           // or how many transactions behind, where its age is not known
)

// Bloat is from when on it warns of dead rows in the hot tables, where claims have to walk over
// them: their number in one table, and how far behind the transaction is that keeps them, in
// transactions or, where it is known, in time.
type Bloat struct {
	Dead, Behind int64
	Snapshot     time.Duration
}

// Check looks for what keeps dead rows, and warns with its name. It ends nothing: that is for
// people to decide.
func (b Bloat) Check(ctx context.Context, in pg.Schema, log *slog.Logger, tx *sql.Tx) (next time.Duration, err error) {
	next = bloatInterval
	settings, err := vacuum.Settings(ctx, tx, string(in))
	if err != nil {
		return 0, err
	}
	if wrong := saySettings(settings); len(wrong) > 0 {
		log.Warn("outbox: dead rows will pile up in the hot tables and make claims slow: "+strings.Join(wrong, "; "), "schema", string(in))
		next = bloatRepeat
	}
	tables, err := vacuum.Tables(ctx, tx, string(in))
	if err != nil {
		return next, err
	}
	for _, t := range tables { // the most dead rows first
		if t.Hot && t.Dead >= b.Dead {
			held, err := b.held(ctx, log, tx, t)
			if err != nil || held {
				return bloatRepeat, err
			}
			break
		}
	}
	return next, nil
}

func saySettings(settings []vacuum.Setting) (wrong []string) {
	for _, s := range settings {
		switch {
		case !s.Hot:
		case s.Fault == vacuum.ServerOff:
			wrong = append(wrong, s.Name+" is off on this server")
		case s.Fault == vacuum.TableOff:
			wrong = append(wrong, "autovacuum is off for the table "+s.Name)
		default:
			wrong = append(wrong, "the autovacuum settings of the table "+s.Name+" are not the outbox's: it will be vacuumed late")
		}
	}
	return wrong
}

// held warns of the one whose horizon is furthest back, if that is far enough.
func (b Bloat) held(ctx context.Context, log *slog.Logger, tx *sql.Tx, t vacuum.Table) (bool, error) {
	holders, err := vacuum.Holders(ctx, tx)
	if err != nil || len(holders) == 0 {
		return false, err
	}
	h := holders[0]
	if !h.Holds || h.Aged && h.Age < b.Snapshot || !h.Aged && h.Behind < b.Behind {
		return false, nil
	}
	attrs := []any{"table", t.Name, "dead_rows", t.Dead, "transactions_behind", h.Behind}
	switch h.Kind {
	case vacuum.Session:
		attrs = append(attrs, "pid", h.ID, "application_name", h.Name)
		if !h.Aged {
			attrs = append(attrs, "hint", "members of pg_read_all_stats see its name and age")
		}
	case vacuum.Slot:
		attrs = append(attrs, "slot", h.ID)
	case vacuum.Standby:
		attrs = append(attrs, "standby", h.Name)
	default:
		attrs = append(attrs, "gid", h.ID, "owner", h.Role)
	}
	if h.Aged {
		attrs = append(attrs, "age", h.Age.Round(time.Second))
	}
	log.Warn("outbox: vacuum cannot remove dead rows, which make claims slow, while a "+h.Kind+" may still see them", attrs...)
	return true, nil
}
