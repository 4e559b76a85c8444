package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/txoutbox/outbox/internal/access"
)

// A column of the app's on task is kept while the task is put back, and in dead letters and the
// history if these have it, too.
const ownColumnsSQL = `/* outbox: columns of the app on its tables */
SELECT c.relname || '.' || a.attname, a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
       c.relname = 'task' AND NOT EXISTS (
         SELECT FROM pg_attribute d JOIN pg_class r ON r.oid = d.attrelid
          WHERE r.relnamespace = c.relnamespace AND r.relname = 'dead_task' AND d.attname = a.attname),
       format('ALTER TABLE %s', c.oid::regclass), quote_ident(a.attname)
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
   AND c.relname || '.' || a.attname <> ALL (string_to_array($2, ' ')) AND c.relname = ANY (string_to_array($3, ' '))
 ORDER BY 1`

const ownTriggersSQL = `/* outbox: triggers of the app on its tables */
SELECT c.relname, g.tgname
  FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relkind = 'r' AND NOT g.tgisinternal AND g.tgenabled <> 'D'
   AND g.tgname <> ALL (string_to_array($2, ' ')) AND c.relname = ANY (string_to_array($3, ' '))
 ORDER BY 1, 2 LIMIT 1000`

// seen are the changes that fire a trigger on a table.
var seen = map[string]string{
	"task": "it sees an INSERT for each task and again for each failed attempt of a Tx or Batch task, " +
		"an UPDATE for each lease and promotion, and a DELETE for each claim of a Tx or Batch task, " +
		"and for each task that finishes or dies",
	"dead_task": "it sees an INSERT when a task dies, and a DELETE when it is redriven or purged",
	"done_task": "it sees an INSERT when a task of a type that keeps its tasks finishes, and a DELETE when that expires",
}

// names are those of the outbox's objects of a kind, with blanks between them.
func names(kind string) string {
	var out []string
	for o := range access.Objects() {
		if o.Kind == kind {
			out = append(out, o.Name)
		}
	}
	return strings.Join(out, " ")
}

func checkOwn(ctx context.Context, v *visit) error {
	if known, err := v.knowsSchema(ctx, "own-columns", "own-triggers"); !known {
		return err
	}
	tables := names("table")
	var subject, alter, column, table, name string
	var required, lost bool
	err := v.each(ctx, ownColumnsSQL, []any{v.schema, strings.Join(access.Columns(), " "), tables},
		[]any{&subject, &required, &lost, &alter, &column}, func() {
			severity, effect, do := SeverityInfo, ", which carries it unread", ""
			switch {
			case required:
				severity, effect = SeverityCritical, ", and NOT NULL without a default: rows that the outbox writes are refused"
				do = alter + " ALTER COLUMN " + column + " DROP NOT NULL; "
			case lost:
				severity, effect = SeverityWarning, ": its value is lost when the task dies, as dead_task has no such column"
			}
			v.add("own-columns", severity, subject, "the column "+subject+" is not the outbox's"+effect,
				do+"keep it in a table of the app, by the task's id; once its values are there, "+alter+" DROP COLUMN "+column)
		})
	if err != nil {
		return err
	}
	return v.each(ctx, ownTriggersSQL, []any{v.schema, names("trigger"), tables}, []any{&table, &name}, func() {
		sees, ok := seen[table]
		if !ok {
			sees = "it runs in the relays' own statements"
		}
		v.add("own-triggers", SeverityInfo, name,
			fmt.Sprintf("the trigger %s on the table %s is not the outbox's: %s", name, table, sees),
			"keep it fast, and let it raise no error: an error fails the claim or the result")
	})
}
