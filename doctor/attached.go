package doctor

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/txoutbox/outbox/schema"
)

// Objects of the app that are attached to the outbox's tables.

const foreignKeysSQL = `/* outbox: foreign keys of the app */
SELECT k.conname, k.conrelid::regclass::text, c.relname, k.confdeltype::text
  FROM pg_constraint k JOIN pg_class c ON c.oid = k.confrelid JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_class a ON a.oid = k.conrelid
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
			when = "each claim of a Tx or Batch task deletes its row, also one whose attempt fails and puts the row back, and so does each task that finishes"
		}
		effect, ok := onDelete[action]
		if !ok {
			effect = "refuses that, so the task cannot run or finish"
		}
		v.add("foreign-keys", Critical, name, fmt.Sprintf("the foreign key %s of the table %s %s when a row of %s is deleted: %s", name, from, effect, to, when),
			fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s; keep the task's id without a foreign key", from, quote(name)))
	})
}

const columnsSQL = `/* outbox: columns of its tables */
SELECT c.relname, a.attname, a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped AND c.relname = ANY (string_to_array($2, ' '))
 ORDER BY 1, 2`

func checkOwnColumns(ctx context.Context, v *visit) error {
	version, _, _, err := v.versions(ctx)
	if err != nil || v.unknownOf("own-columns", version) {
		return err
	}
	var table, column string
	var required bool
	ours := expectedColumns(version)
	return v.each(ctx, columnsSQL, []any{v.schema, v.tables()}, []any{&table, &column, &required}, func() {
		if len(ours[table]) == 0 || slices.Contains(ours[table], column) { // a table of a newer version
			return
		}
		subject, drop := table+"."+column, "keep it in a table of the app's, by the task's id, and ALTER TABLE "+v.name(table)+" DROP COLUMN "+quote(column)
		switch {
		case required:
			v.add("own-columns", Critical, subject, "the column "+subject+" is not the outbox's, and NOT NULL without a default: rows that the outbox writes are refused", drop)
		case table == "task" || table == "dead_task" || table == "done_task":
			v.add("own-columns", Warning, subject, "the column "+subject+" is not the outbox's: its value is lost when a failed attempt puts the row back, and when the task dies, is redriven or finishes", drop)
		default:
			v.add("own-columns", Info, subject, "the column "+subject+" is not the outbox's, which neither reads nor writes it", drop)
		}
	})
}

// unknownOf adds a finding that a check cannot tell the outbox's objects from the app's, if the schema
// is newer than this program.
func (v *visit) unknownOf(check string, version int) bool {
	if version <= schema.Version() {
		return false
	}
	v.add(check, Info, "", fmt.Sprintf("not checked: the schema is at version %d, and this program knows what version %d has", version, schema.Version()), "")
	return true
}

// In the migrations a column's line of CREATE TABLE begins with two blanks and its name. dead_task and
// done_task have the columns that task has there.
var (
	columnsOf  = regexp.MustCompile(`LIKE outbox\.(\w+)`)
	columnLine = regexp.MustCompile(`(?m)^  ([a-z]\w*) +[a-z]`)
	addsTo     = regexp.MustCompile(`ALTER TABLE outbox\.(\w+)([^;]*)`)
	addsColumn = regexp.MustCompile(`ADD COLUMN (?:IF NOT EXISTS )?(\w+)`)
)

// expectedColumns are those of each table of a version.
func expectedColumns(version int) map[string][]string {
	out := map[string][]string{}
	known := min(version, len(migrations()))
	for _, text := range migrations()[:known] {
		for _, m := range makes.FindAllStringSubmatch(text, -1) {
			if m[1] == "TABLE" {
				body, _, _ := strings.Cut(m[3], "\n)")
				if like := columnsOf.FindStringSubmatch(body); like != nil {
					out[m[2]] = slices.Clone(out[like[1]])
				}
				for _, c := range columnLine.FindAllStringSubmatch(body, -1) {
					out[m[2]] = append(out[m[2]], c[1])
				}
			}
		}
		for _, m := range addsTo.FindAllStringSubmatch(text, -1) {
			for _, c := range addsColumn.FindAllStringSubmatch(m[2], -1) {
				out[m[1]] = append(out[m[1]], c[1])
			}
		}
	}
	return out
}

const triggersSQL = `/* outbox: triggers of the app */
SELECT c.relname, g.tgname
  FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relkind = 'r' AND NOT g.tgisinternal AND g.tgenabled <> 'D' AND c.relname = ANY (string_to_array($2, ' '))
 ORDER BY 1, 2 LIMIT 1000`

// seen has the changes that a trigger on a table sees.
var seen = map[string]string{
	"task": "it sees an INSERT for each task and again for each attempt of a Tx or Batch task that fails, an UPDATE for each lease and promotion, " +
		"and a DELETE for each claim of a Tx or Batch task, each finished one and each that dies",
	"dead_task": "it sees an INSERT when a task dies, and a DELETE when it is redriven or purged",
	"done_task": "it sees an INSERT when a task of a type that keeps its tasks finishes, and a DELETE when that expires",
}

func checkOwnTriggers(ctx context.Context, v *visit) error {
	version, _, _, err := v.versions(ctx)
	if err != nil || v.unknownOf("own-triggers", version) {
		return err
	}
	var table, name string
	ours := expected(version)
	return v.each(ctx, triggersSQL, []any{v.schema, v.tables()}, []any{&table, &name}, func() {
		if _, found := ours[object{"trigger", name}]; found {
			return
		}
		sees, ok := seen[table]
		if !ok {
			sees = "it runs in the relays' own statements"
		}
		v.add("own-triggers", Info, name, fmt.Sprintf("the trigger %s on the table %s is not the outbox's: %s", name, table, sees),
			"keep it fast, and let it raise no error: that fails the claim or the result")
	})
}
