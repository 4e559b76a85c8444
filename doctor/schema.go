package doctor

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/access"
	"github.com/txoutbox/outbox/internal/origin"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/schema"
)

// schemaChecks are of the outbox's objects, its counts and ids, and the database that it is in.
var schemaChecks = []check{
	{name: "schema-version", fine: "the schema is of the version that this program needs", look: checkVersion},
	{name: "schema-objects", fine: "all tables, views, sequences and functions are there", look: checkObjects,
		ofVersion: true, also: []passed{
			{"indexes", "all indexes are there and valid"},
			{"triggers", "all triggers are there and enabled"}}},
	{name: "counts", fine: "the counts are those of the rows", look: checkCounts},
	{name: "sequences", fine: "new ids are above those that were given", look: checkSequences},
	{name: "copy", fine: "this is the database that the tasks were enqueued in", look: checkOrigin, also: []passed{
		{"environment", "no relay is refused for its environment"}}},
}

const thereSQL = `/* outbox: whether there is an outbox */
SELECT to_regclass('outbox.migration') IS NOT NULL, current_database()`

func checkVersion(ctx context.Context, v *visit) error {
	fault := func(severity Severity, what, do string) { v.add("schema-version", severity, v.schema, what, do) }
	migrate := "run outbox migrate up, or schema.Migrate"
	if v.schema != "outbox" {
		migrate = fmt.Sprintf("run outbox migrate up for this schema, or schema.Migrate with schema.Schema(%q)",
			v.schema)
	}
	var there bool
	var database string
	if err := v.row(ctx, thereSQL, nil, &there, &database); err != nil {
		return err
	}
	if !there {
		fault(SeverityCritical, fmt.Sprintf("there is no outbox in the schema %s of the database %s", v.schema, database),
			migrate+"; if it has another schema, name that one")
		return nil
	}
	state, wrong := schema.Inspect(ctx, v.tx, schema.Schema(v.schema))
	if errors.Is(wrong, schema.ErrNotMigrated) && state.Version == 0 {
		what, do := notMigrated(wrong)
		fault(SeverityCritical, what, do)
		return nil
	}
	version, oldest, missing, err := v.versions(ctx)
	if err != nil {
		return err
	}
	if err := schema.CheckRowSecurity(ctx, v.tx, schema.Schema(v.schema)); version == 0 && errors.Is(err, schema.ErrRowSecurity) {
		fault(SeverityCritical, "row level security hides the versions from this role", "see row-security")
		return nil
	}
	switch needed := schema.Version(); {
	case version < needed:
		fault(SeverityCritical, fmt.Sprintf("the schema is at version %d, this program needs %d: relays of its version do not start",
			version, needed), migrate)
	case errors.Is(wrong, schema.ErrNotMigrated): // its functions are other code's, or another schema's
		what, do := notMigrated(wrong)
		if do == "run schema.Migrate" {
			do = migrate
		}
		fault(SeverityCritical, what+": relays of this program do not start", do)
	case version > needed && oldest <= needed:
		fault(SeverityInfo, fmt.Sprintf("the schema is at version %d, this program knows %d: "+
			"code that knows %d or newer may run beside it", version, needed, oldest),
			"upgrade the module github.com/txoutbox/outbox, here and wherever relays are of this version, "+
				"once the deploy is to stay")
	case version > needed:
		fault(SeverityWarning, fmt.Sprintf("the schema is at version %d, which needs code that knows %d; this program knows %d: "+
			"relays of its version do not start", version, oldest, needed),
			"after a rollback run the newer code again, or do what its changelog says; else upgrade the module "+
				"github.com/txoutbox/outbox, here and wherever relays are of this version")
	}
	if missing != "" {
		fault(SeverityWarning, "versions that were left out: "+missing, v.applyAgain())
	}
	return nil
}

// notMigrated splits an ErrNotMigrated into what is wrong and what to do.
func notMigrated(err error) (what, do string) {
	_, text, _ := strings.Cut(err.Error(), "not migrated: ")
	if last := strings.LastIndex(text, ": "); last >= 0 {
		return text[:last], text[last+2:]
	}
	return text, "run schema.Migrate"
}

// applyAgain mends what is missing of the schema's objects: the files do no harm when all of them
// are applied again, in their order.
func (v *visit) applyAgain() string {
	return "apply all migrations again, in their order and in one transaction: schema.SQL(schema.Schema(\"" + v.schema +
		"\")) is the script, outbox migrate print prints it, and psql -v ON_ERROR_STOP=1 -1 -f applies it"
}

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

// mostCounted is the most tasks and dead letters that are counted.
const mostCounted = 10_000

var sizeSQL = fmt.Sprintf(`/* outbox: whether there are few tasks */
SELECT (SELECT count(*) FROM (SELECT task_id FROM outbox.task ORDER BY task_id LIMIT %[1]d) AS t)
     + (SELECT count(*) FROM (SELECT task_id FROM outbox.dead_task ORDER BY task_id LIMIT %[1]d) AS d)`, mostCounted)

const repair = "outbox repair prints all such defects, and outbox repair -yes repairs them (admin.Client.Repair)"

// checkCounts counts only if there is little to count.
func checkCounts(ctx context.Context, v *visit) error {
	var n int64
	if err := v.row(ctx, sizeSQL, nil, &n); err != nil {
		return err
	}
	if n >= mostCounted {
		v.add("counts", SeverityOK, "", fmt.Sprintf("not checked, as there are %d tasks or more: outbox repair counts them",
			mostCounted), "")
		return nil
	}
	found, err := v.admin.Defects(ctx, admin.RepairOptions{Kinds: []admin.DefectKind{admin.DefectCounts}})
	for _, d := range found {
		v.add("counts", SeverityWarning, d.Subject, fmt.Sprintf("%d are counted, and there are %d", d.Is, d.ShouldBe), repair)
	}
	return err
}

func checkSequences(ctx context.Context, v *visit) error {
	found, err := v.admin.Defects(ctx, admin.RepairOptions{Kinds: []admin.DefectKind{admin.DefectSequences}})
	for _, d := range found {
		effect := "an INSERT fails with a duplicate key"
		if d.Subject == "task_task_id_seq" {
			effect = "new tasks have the ids of other tasks, or fail with a duplicate key"
		}
		v.add("sequences", SeverityCritical, d.Subject,
			fmt.Sprintf("the sequence %s is at %d, behind ids that were given: %s", d.Subject, d.Is, effect), repair)
	}
	return err
}

func checkOrigin(ctx context.Context, v *visit) error {
	s, of, err := origin.LookForTools(ctx, v.tx, pg.Schema(v.schema))
	if err != nil || s.DatabaseID == "" {
		return err
	}
	problem, remedy := s.Problem(of)
	switch {
	case problem != "" && of == "":
		v.add("copy", SeverityCritical, "", "this database may be a copy"+problem+
			": relays run nothing in it, and tasks can be enqueued", remedy)
		return nil
	case problem != "":
		relays, err := v.relays(ctx)
		if err != nil {
			return err
		}
		severity := SeverityCritical
		if slices.ContainsFunc(relays, func(w worker) bool { return w.alive }) {
			severity = SeverityWarning
		}
		v.add("environment", severity, of, fmt.Sprintf("relays of the environment %q run nothing: this database may be "+
			"a copy%s", of, problem), remedy)
	case s.Environment == "":
		v.add("environment", SeverityInfo, "", "no relay names a Config.Environment, "+
			"so a snapshot or clone of this database sends the tasks that wait in it",
			"set relay.Config.Environment in production first, from the app's configuration")
	default:
		v.add("environment", SeverityOK, "", fmt.Sprintf("the environment is %q: relays of another one run nothing",
			s.Environment), "")
	}
	if s.Hidden {
		v.add("copy", SeverityInfo, "", "the owner of the outbox cannot read the server's system identifier, "+
			"so not each copy by a dump is recognised",
			"GRANT EXECUTE ON FUNCTION pg_control_system() TO the owner, where the provider lets you; else see environment")
	}
	return nil
}

// follow has the checks that miss relays point to the one that says why relays are refused: more of
// them, or other handlers, would not help.
func follow(found []Finding) {
	at := slices.IndexFunc(found, func(f Finding) bool {
		return f.Check == "copy" && f.Severity == SeverityCritical || f.Check == "environment" && f.Subject != ""
	})
	if at < 0 {
		return
	}
	for i, f := range found {
		switch f.Check {
		case "relays", "unhandled-type", "starving-type", "schedules":
			switch {
			case f.Remedy == "":
			case found[at].Severity == SeverityCritical:
				found[i].Remedy = "see " + found[at].Check
			default: // relays are alive
				found[i].Remedy = "see " + found[at].Check + "; else " + f.Remedy
			}
		}
	}
}
