package doctor

import (
	"context"
	"fmt"
)

const foreignKeysSQL = `/* outbox: foreign keys of the app */
SELECT k.conname, k.conrelid::regclass::text, c.relname, k.confdeltype::text
  FROM pg_constraint k JOIN pg_class c ON c.oid = k.confrelid JOIN pg_class f ON f.oid = k.conrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE k.contype = 'f' AND n.nspname = $1 AND f.relnamespace <> n.oid
 ORDER BY 1, 2 LIMIT 1000`

// onDelete is the effect of each action of a foreign key when its row is deleted.
var onDelete = map[string]string{
	"c": "deletes the app's row",
	"n": "sets the app's reference to NULL",
	"d": "sets the app's reference to its default",
}

func checkForeignKeys(ctx context.Context, v *visit) error {
	var name, from, to, action string
	return v.each(ctx, foreignKeysSQL, []any{v.schema}, []any{&name, &from, &to, &action}, func() {
		when := "rows of " + to + " are deleted in the outbox's normal work"
		if to == "task" {
			when = "each claim of a Tx or Batch task deletes its row, also if its attempt fails and puts the row " +
				"back, " +
				"and so does each task that finishes"
		}
		effect, ok := onDelete[action]
		if !ok {
			effect = "refuses that, so the task cannot run or finish"
		}
		v.add("foreign-keys", Critical, name,
			fmt.Sprintf("the foreign key %s of the table %s %s when a row of %s is deleted: %s", name, from, effect, to,
				when),
			fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s; keep the task's id without a foreign key", from,
				quote(name)))
	})
}
