package relay

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/txoutbox/outbox/internal/vacuum"
)

const (
	bloatInterval = time.Minute
	bloatRepeat   = 15 * time.Minute // between two warnings
	bloatDead     = 10_000           // dead tuples of one table
	bloatSnapshot = 5 * time.Minute  // how old a snapshot must be that keeps them
	bloatBehind   = 50_000           // or how many transactions behind, where its age is not known
)

// bloat looks for what keeps dead tuples in the hot tables, where claims have to walk over them, and warns with its
// name. It ends nothing: that is for people to decide.
type bloat struct {
	dead, behind int64
	snapshot     time.Duration
}

func checkBloat(ctx context.Context, r *Relay, tx *sql.Tx) (next time.Duration, err error) {
	return bloat{bloatDead, bloatBehind, bloatSnapshot}.check(ctx, r, tx)
}

func (b bloat) check(ctx context.Context, r *Relay, tx *sql.Tx) (next time.Duration, err error) {
	next = bloatInterval
	settings, err := vacuum.Settings(ctx, tx, r.config.Schema)
	if err != nil {
		return 0, err
	}
	if wrong := saySettings(settings); len(wrong) > 0 {
		r.log.Warn("outbox: dead rows will pile up in the hot tables and make claims slow: "+strings.Join(wrong, "; "), "schema", r.config.Schema)
		next = bloatRepeat
	}
	tables, err := vacuum.Tables(ctx, tx, r.config.Schema)
	if err != nil {
		return next, err
	}
	for _, t := range tables { // the most dead rows first
		if t.Hot && t.Dead >= b.dead {
			held, err := b.held(ctx, r, tx, t)
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
func (b bloat) held(ctx context.Context, r *Relay, tx *sql.Tx, t vacuum.Table) (bool, error) {
	holders, err := vacuum.Holders(ctx, tx)
	if err != nil || len(holders) == 0 {
		return false, err
	}
	h := holders[0]
	if !h.Holds || h.Aged && h.Age < b.snapshot || !h.Aged && h.Behind < b.behind {
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
	r.log.Warn("outbox: vacuum cannot remove dead rows, which make claims slow, while a "+h.Kind+" may still see them", attrs...)
	return true, nil
}
