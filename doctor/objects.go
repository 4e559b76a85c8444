package doctor

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/txoutbox/outbox/internal/access"
	"github.com/txoutbox/outbox/schema"
)

// A function may have several signatures. An index that is being built is no fault: its
// builder locks the table, which every role sees.
const objectsSQL = `/* outbox: what is in the schema */
WITH ns AS (SELECT oid FROM pg_namespace WHERE nspname = $1)
SELECT CASE c.relkind WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' WHEN 'i' THEN 'index' ELSE 'table' END,
       c.relname, COALESCE(t.relname, ''),
       CASE WHEN x.indexrelid IS NULL THEN CASE c.relpersistence WHEN 'u' THEN 'unlogged' ELSE '' END
            WHEN x.indisvalid AND x.indisready THEN ''
            WHEN EXISTS (SELECT 1 FROM pg_locks l WHERE l.locktype = 'relation' AND l.relation = x.indrelid
                            AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                            AND l.mode = 'ShareUpdateExclusiveLock' AND l.granted) THEN 'building'
            ELSE 'invalid' END
  FROM pg_class c JOIN ns ON c.relnamespace = ns.oid
  LEFT JOIN pg_index x ON x.indexrelid = c.oid LEFT JOIN pg_class t ON t.oid = x.indrelid
 WHERE c.relkind IN ('r', 'v', 'S', 'i')
UNION ALL
SELECT 'trigger', tgname, c.relname, CASE WHEN tgenabled IN ('O', 'A') THEN '' ELSE 'disabled' END
  FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid JOIN ns ON c.relnamespace = ns.oid WHERE NOT tgisinternal
UNION ALL
SELECT DISTINCT 'function', proname, '', '' FROM pg_proc p JOIN ns ON p.pronamespace = ns.oid
 ORDER BY 1, 3, 2`

// leftover is the name of an index that a broken REINDEX CONCURRENTLY left behind.
var leftover = regexp.MustCompile(`_cc(new|old)[0-9]*$`)

func checkObjects(ctx context.Context, v *visit) error {
	if known, err := v.knowsSchema(ctx, "schema-objects", "indexes", "triggers"); !known {
		return err
	}
	want := access.Objects()
	var o access.Object
	var on, state string
	err := v.each(ctx, objectsSQL, []any{v.schema}, []any{&o.Kind, &o.Name, &on, &state}, func() {
		_, ours := want[o]
		delete(want, o)
		switch {
		case state == "unlogged" && ours:
			v.add("schema-objects", SeverityCritical, o.Name,
				"the table "+o.Name+" is unlogged: a crash of the server empties it",
				"ALTER TABLE "+v.name(o.Name)+" SET LOGGED")
		case state == "invalid" && ours:
			v.add("indexes", SeverityCritical, o.Name,
				"the index "+o.Name+" of the table "+on+" is invalid: no statement uses it",
				"REINDEX INDEX CONCURRENTLY "+v.name(o.Name))
		case state == "invalid" && leftover.MatchString(o.Name):
			v.add("indexes", SeverityWarning, o.Name,
				"the index "+o.Name+" is the leftover of a broken REINDEX: it makes writes slower, and is not used",
				"DROP INDEX CONCURRENTLY "+v.name(o.Name)+"; or admin.Client.Reindex (outbox reindex), which drops "+
					"it too")
		case state == "invalid":
			v.add("indexes", SeverityWarning, o.Name,
				"the index "+o.Name+" of the table "+on+", which is not the outbox's, is invalid",
				"REINDEX INDEX CONCURRENTLY "+v.name(o.Name)+"; or, if the app has no use for it, DROP INDEX CONCURRENTLY")
		case state == "disabled" && ours:
			v.add("triggers", SeverityCritical, o.Name, "the trigger "+o.Name+" of the table "+on+" is disabled: "+onTriggers,
				"ALTER TABLE "+v.name(on)+" ENABLE TRIGGER "+o.Name+"; then, as counts and keys are wrong now, "+
					"outbox repair -yes (admin.Client.Repair)")
		}
	})
	if err == nil {
		v.missing(want)
	}
	return err
}

// knowsSchema reports whether the schema has this program's version. Otherwise the checks have the
// finding that they were not done: the objects of another version are unknown.
func (v *visit) knowsSchema(ctx context.Context, checks ...string) (bool, error) {
	version, _, _, err := v.versions(ctx)
	if err != nil || version == schema.Version() {
		return err == nil, err
	}
	for _, name := range checks {
		v.add(name, SeverityInfo, "", fmt.Sprintf("not checked: the schema is at version %d, and this program knows version %d",
			version, schema.Version()), "")
	}
	return false, nil
}

const onTriggers = "counts, delays, keys, order and wake-ups live on triggers"

var spaces = regexp.MustCompile(`\s+`)

// missing reports missing objects.
func (v *visit) missing(want map[access.Object]string) {
	for o, statement := range want {
		what := fmt.Sprintf("the %s %s is missing", o.Kind, o.Name)
		switch {
		case o.Kind == "index" && statement != "":
			statement = strings.TrimSpace(spaces.ReplaceAllString(statement, " "))
			statement = strings.Replace(statement, " INDEX IF NOT EXISTS ", " INDEX CONCURRENTLY ", 1)
			on, _, _ := strings.Cut(strings.SplitN(statement, "outbox.", 2)[1], " ")
			v.add("indexes", SeverityCritical, o.Name,
				what+": statements read all of the table "+on+" instead, or rows that exclude each other are let in",
				strings.Replace(statement, "outbox."+on, v.name(on), 1))
		case o.Kind == "index":
			table := strings.TrimSuffix(o.Name, "_pkey")
			v.add("indexes", SeverityCritical, o.Name, what, "add the primary key of the table "+table+
				" as its migration has it, with ALTER TABLE "+v.name(table)+" ADD PRIMARY KEY (…)")
		case o.Kind == "trigger":
			v.add("triggers", SeverityCritical, o.Name, what+": "+onTriggers, v.applyAgain())
		default:
			v.add("schema-objects", SeverityCritical, o.Name, what, v.applyAgain())
		}
	}
}
