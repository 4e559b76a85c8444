package doctor

import (
	"context"
	"fmt"
	"slices"
)

const foreignKeysSQL = `/* outbox: foreign keys of the app */
SELECT k.conname, k.conrelid::regclass::text, c.relname, k.confdeltype::text
  FROM pg_constraint k JOIN pg_class c ON c.oid = k.confrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE k.contype = 'f' AND n.nspname = $1 AND c.relname = ANY (string_to_array($2, ' '))
 ORDER BY 1, 2 LIMIT 1000`

// onDelete is the effect of each action of a foreign key when its row is deleted.
var onDelete = map[string]string{
	"c": "deletes the app's row",
	"n": "sets the app's reference to NULL",
	"d": "sets the app's reference to its default",
}

func checkForeignKeys(ctx context.Context, v *visit) error {
	var name, from, to, action string
	return v.each(ctx, foreignKeysSQL, []any{v.schema, v.tables()}, []any{&name, &from, &to, &action}, func() {
		when := "rows of " + to + " are deleted in the outbox's normal work"
		if to == "task" {
			when = "each claim of a Tx or Batch task deletes its row, also if its attempt fails and puts the row back, " +
				"and so does each task that finishes"
		}
		effect, ok := onDelete[action]
		if !ok {
			effect = "refuses that, so the task cannot run or finish"
		}
		v.add("foreign-keys", Critical, name,
			fmt.Sprintf("the foreign key %s of the table %s %s when a row of %s is deleted: %s", name, from, effect, to, when),
			fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s; keep the task's id without a foreign key", from, quote(name)))
	})
}

const columnsSQL = `/* outbox: columns of its tables */
SELECT c.relname, a.attname, a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
   AND c.relname = ANY (string_to_array($2, ' '))
 ORDER BY 1, 2`

func checkOwnColumns(ctx context.Context, v *visit) error {
	if known, err := v.knowsSchema(ctx, "own-columns"); !known {
		return err
	}
	var table, column string
	var required bool
	ours := expectedColumns()
	return v.each(ctx, columnsSQL, []any{v.schema, v.tables()}, []any{&table, &column, &required}, func() {
		if slices.Contains(ours[table], column) {
			return
		}
		subject := table + "." + column
		severity, effect := Info, ", which neither reads nor writes it"
		switch {
		case required:
			severity, effect = Critical, ", and NOT NULL without a default: rows that the outbox writes are refused"
		case table == "task" || table == "dead_task" || table == "done_task":
			severity, effect = Warning, ": its value is lost when a failed attempt puts the row back, "+
				"and when the task dies, is redriven or finishes"
		}
		v.add("own-columns", severity, subject, "the column "+subject+" is not the outbox's"+effect,
			"keep it in a table of the app, by the task's id, and ALTER TABLE "+v.name(table)+" DROP COLUMN "+quote(column))
	})
}

const triggersSQL = `/* outbox: triggers of the app */
SELECT c.relname, g.tgname
  FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relkind = 'r' AND NOT g.tgisinternal AND g.tgenabled <> 'D'
   AND c.relname = ANY (string_to_array($2, ' '))
 ORDER BY 1, 2 LIMIT 1000`

// seen are the changes that fire a trigger on a table.
var seen = map[string]string{
	"task": "it sees an INSERT for each task and again for each failed attempt of a Tx or Batch task, " +
		"an UPDATE for each lease and promotion, and a DELETE for each claim of a Tx or Batch task, " +
		"and for each task that finishes or dies",
	"dead_task": "it sees an INSERT when a task dies, and a DELETE when it is redriven or purged",
	"done_task": "it sees an INSERT when a task of a type that keeps its tasks finishes, and a DELETE when that expires",
}

func checkOwnTriggers(ctx context.Context, v *visit) error {
	if known, err := v.knowsSchema(ctx, "own-triggers"); !known {
		return err
	}
	var table, name string
	ours := expected()
	return v.each(ctx, triggersSQL, []any{v.schema, v.tables()}, []any{&table, &name}, func() {
		if _, found := ours[object{"trigger", name}]; found {
			return
		}
		sees, ok := seen[table]
		if !ok {
			sees = "it runs in the relays' own statements"
		}
		v.add("own-triggers", Info, name, fmt.Sprintf("the trigger %s on the table %s is not the outbox's: %s", name, table, sees),
			"keep it fast, and let it raise no error: an error fails the claim or the result")
	})
}
