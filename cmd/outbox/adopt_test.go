package main

import "testing"

// becomeCopy has the database look as one that a dump of production's was restored in.
const becomeCopy = `UPDATE outbox.origin SET database_name = 'production', database_oid = 1, table_oid = 1`

func TestACopyIsAdoptedOrEmptied(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.Do(t, `SELECT outbox.note_origin('')`)
	db.steps(t, step{"adopt -yes", exitFailed, "this database is no copy"})
	db.ok(t, "enqueue", "MAIL", "{}")
	db.bury(t, "MAIL", "no such mailbox", 1001, 2)
	db.schedule(t, "nightly")
	db.Do(t, becomeCopy)
	db.steps(t,
		step{"adopt", exitUsage, `This database may be a copy of "production", made after `},
		step{"adopt", exitUsage, "Take it over, with 1 task to run? Say --yes"},
		step{"adopt -keep-id", exitUsage, "Continue the original here, with 1 task to run? Say --yes"},
		step{"adopt -discard", exitUsage, "DELETE its 1 task and 2 dead letters, and take it over? Say --yes"},
		step{"adopt -discard -keep-id -yes", exitUsage, "exclude each other"},
		step{"adopt -discard -yes", exitOK, "1 task, 2 dead letters and 1 schedule discarded\n"},
		step{"adopt -yes", exitFailed, "this database is no copy"},
		step{"adopt -environment staging", exitUsage, "and not known to be a copy. Take it over"},
		step{"adopt -environment staging -yes", exitOK, "adopted: this is the database "},
		step{"adopt -environment staging -yes", exitFailed, "this database is no copy"},
	)
	db.is(t, `SELECT string_agg(action || ' ' || count, ', ' ORDER BY entry_id)
		FROM outbox.audit WHERE action LIKE 'adopt%'`, "adopt_discard 3, adopt 0")
	db.steps(t,
		step{"doctor", exitFindings, `environment: the environment is "staging"`},
		step{"adopt -environment test", exitUsage, ` of the environment "staging", and not known to be a copy.`})
	db.Do(t, `SELECT outbox.note_origin('test')`) // as a relay does
	db.steps(t,
		step{"adopt -environment test", exitUsage, `its environment is "staging", and Config.Environment is "test". Take`})
	db.Do(t, becomeCopy)
	db.steps(t, step{"adopt -keep-id -yes", exitOK, db.Text(t, `SELECT database_id FROM outbox.identity`)})
}
