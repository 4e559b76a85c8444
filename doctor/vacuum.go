package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/txoutbox/outbox/internal/vacuum"
)

const napSQL = `/* outbox: how often autovacuum looks */
SELECT setting::bigint, quote_ident(current_database()) FROM pg_settings WHERE name = 'autovacuum_naptime'`

func checkAutovacuum(ctx context.Context, v *visit) error {
	const name = "autovacuum"
	wrong, err := vacuum.Settings(ctx, v.tx, v.schema)
	if err != nil {
		return err
	}
	var nap int64
	var database string
	if err := v.row(ctx, napSQL, nil, &nap, &database); err != nil {
		return err
	}
	if d := time.Duration(nap) * time.Second; d > lateVacuum {
		v.add(name, Warning, "autovacuum_naptime", "autovacuum_naptime is "+said(d)+": dead rows pile up in between and make claims slow",
			"ALTER SYSTEM SET autovacuum_naptime = '1min', then SELECT pg_reload_conf()")
	}
	for _, w := range wrong {
		switch w.Fault {
		case vacuum.ServerOff:
			var source string
			if err := v.row(ctx, `SELECT source FROM pg_settings WHERE name = $1`, []any{w.Name}, &source); err != nil {
				return err
			}
			do := "ALTER SYSTEM SET " + w.Name + " = on, then SELECT pg_reload_conf()"
			switch source {
			case "database", "database user", "user":
				do = "ALTER DATABASE " + database + " RESET " + w.Name + ", or ALTER ROLE … RESET " + w.Name + ": it is set for this " + source + ", not in the server's files"
			case "command line":
				do = "start the server without it: it is set on the command line, which comes before the server's files"
			}
			v.add(name, Critical, w.Name, w.Name+" is off: dead rows pile up and make claims slow", do)
		case vacuum.TableOff:
			v.add(name, Warning, w.Name, "autovacuum is off for the table "+w.Name+": its dead rows pile up and make claims slow",
				"ALTER TABLE "+v.name(w.Name)+" RESET (autovacuum_enabled)")
		default:
			v.add(name, Warning, w.Name, "the autovacuum settings of the table "+w.Name+" are not the outbox's: it is vacuumed late",
				fmt.Sprintf("ALTER TABLE %s SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = %d, autovacuum_vacuum_cost_delay = 0)", v.name(w.Name), thresholds[w.Name]))
		}
	}
	return nil
}

// thresholds are those of the migrations.
var thresholds = map[string]int{"task": 1000, "running": 1000, "counter_log": 5000, "counter": 500, "headless_key": 1000, "unique_key": 1000, "slot": 500, "bucket": 500}

// lateVacuum is after how long without a vacuum a table with many dead rows is reported: autovacuum
// looks once a minute, unless autovacuum_naptime was changed.
const lateVacuum = 10 * time.Minute

func checkDeadRows(ctx context.Context, v *visit) error {
	tables, err := vacuum.Tables(ctx, v.tx, v.schema)
	if err != nil {
		return err
	}
	for _, t := range tables {
		if t.Dead < v.dead {
			continue
		}
		what := fmt.Sprintf("the table %s has %d dead rows beside %d that are there, ", t.Name, t.Dead, t.Live)
		do := "VACUUM (ANALYZE) " + v.name(t.Name) + "; see autovacuum, and whether its workers are kept busy by other tables (autovacuum_max_workers)"
		switch {
		case !t.Vacuumed:
			v.add("dead-rows", Warning, t.Name, what+"and was never vacuumed", do)
		case t.Since > lateVacuum:
			v.add("dead-rows", Warning, t.Name, what+"and was vacuumed "+said(t.Since)+" ago", do)
		default:
			v.add("dead-rows", Info, t.Name, what+"and was vacuumed "+said(t.Since)+" ago", "nothing, if that is how much is done in a minute; else see held-transaction")
		}
	}
	return nil
}

const (
	heldDead   = 10_000      // dead rows of one table from which on less patience is had
	heldFor    = time.Minute // then: longer than a Tx handler may take
	heldBehind = 50_000      // transactions, where the age is not known
	heldMany   = 1_000_000   // dead rows of one table: claims are slow by now
)

const seenSQL = `/* outbox: whether other roles' sessions are seen in full */
SELECT pg_has_role('pg_read_all_stats', 'USAGE') OR NOT EXISTS (SELECT 1 FROM pg_stat_activity a
  WHERE a.datname = current_database() AND a.usesysid IS NOT NULL AND NOT pg_has_role(a.usesysid, 'USAGE')), quote_ident(current_user)`

func checkHolders(ctx context.Context, v *visit) error {
	holders, err := vacuum.Holders(ctx, v.tx)
	if err != nil {
		return err
	}
	tables, err := vacuum.Tables(ctx, v.tx, v.schema)
	if err != nil {
		return err
	}
	var dead int64
	for _, t := range tables {
		if t.Hot {
			dead = max(dead, t.Dead)
		}
	}
	for _, h := range holders {
		v.holder(h, dead)
	}
	var seen bool
	var role string
	if err := v.row(ctx, seenSQL, nil, &seen, &role); err != nil {
		return err
	}
	if !seen {
		v.add("held-transaction", Unknown, "",
			"checked in part: this role sees of other roles' sessions neither for how long nor in which state they are", "GRANT pg_monitor TO "+role)
	}
	return nil
}

// holder reports one that is old enough.
func (v *visit) holder(h vacuum.Holder, dead int64) {
	patience := v.held
	if dead >= heldDead {
		patience = min(patience, heldFor)
	}
	if h.Aged && h.Age < patience || !h.Aged && h.Behind < heldBehind && (h.Kind != vacuum.Slot || h.State == "active") {
		return
	}
	severity := Warning
	if h.Holds && dead >= heldMany {
		severity = Critical
	}
	effect := ", and keeps its locks and its connection"
	if h.Holds {
		effect = fmt.Sprintf(", and vacuum can remove no rows that died since, which is %s ago", plural(h.Behind, "transaction"))
		if dead > 0 {
			effect += fmt.Sprintf(" (%s in one table of the outbox)", plural(dead, "dead row"))
		}
	}
	since := ""
	if h.Aged {
		since = " for " + said(h.Age)
	}
	switch h.Kind {
	case vacuum.Session:
		v.session(h, severity, since, effect)
	case vacuum.Prepared:
		do := "COMMIT PREPARED " + h.Quoted + " or ROLLBACK PREPARED " + h.Quoted
		if !h.Here {
			do += ", in the database " + h.Database
		}
		v.add("prepared-transaction", severity, h.ID, fmt.Sprintf("a transaction of the role %s in the database %s has been prepared%s%s", h.Role, h.Database, since, effect), do)
	case vacuum.Slot:
		do := "find out why its standby is so far behind: mostly a long query there, with hot_standby_feedback"
		if h.State == "inactive" {
			do = "start its standby again or, if that is gone for good, SELECT pg_drop_replication_slot(" + h.Quoted + ")"
		}
		v.add("replication-slot", severity, h.ID, fmt.Sprintf("the %s replication slot %s keeps the snapshot of a standby%s", h.State, h.ID, effect), do)
	case vacuum.Standby:
		v.add("standby-feedback", severity, h.Name, fmt.Sprintf("the standby %s (pid %s) sends the snapshot of an old query of its own%s", h.Name, h.ID, effect),
			"end the query on the standby, or set hot_standby_feedback = off there")
	}
}

func (v *visit) session(h vacuum.Holder, severity Severity, since, effect string) {
	state := "in a transaction"
	if h.State == "active" {
		state = "active in a transaction"
	} else if h.State != "" {
		state = h.State // idle in transaction, …
	}
	who := "the session of pid " + h.ID
	if h.Role != "" {
		who += fmt.Sprintf(" (role %s, application %q)", h.Role, h.Name)
	}
	if !h.Here {
		who += " in the database " + h.Database
	}
	do := "find out what it does and end it there, or SELECT pg_terminate_backend(" + h.ID + ")"
	if h.State != "active" {
		do += "; against the next one: ALTER DATABASE " + quote(h.Database) + " SET idle_in_transaction_session_timeout = '5min'"
	}
	v.add("held-transaction", severity, "pid "+h.ID, who+" has been "+state+since+effect, do)
}
