package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/txoutbox/outbox/internal/access"
	"github.com/txoutbox/outbox/schema"
)

// rightsChecks are of roles, and of what the app has added to the outbox's tables.
var rightsChecks = []check{
	{name: "roles", fine: "the roles have the rights that this version gives them, or there are none",
		query: rolesSQL, args: func(s settings) []any { return []any{s.schema, asJSON(access.Grants())} }},
	{name: "row-security", fine: "row level security is off", look: checkRowSecurity},
	{name: "foreign-keys", fine: "no table of the app refers to the outbox's tables",
		query: foreignKeysSQL, args: ofSchema},
	{name: "own-columns", fine: "the tables have no columns of the app's",
		query: ownColumnsSQL, ofVersion: true, args: func(s settings) []any {
			return []any{s.schema, strings.Join(access.Columns(), " "), names("table")}
		}},
	{name: "own-triggers", fine: "the tables have no triggers of the app's",
		query: ownTriggersSQL, ofVersion: true, args: func(s settings) []any {
			return []any{s.schema, names("trigger"), names("table")}
		}},
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

// A group that lacks a right, and an object that does not belong to the group of owners, if that owns
// the outbox. schema-objects reports missing objects.
const rolesSQL = `/* outbox: rights that roles lack */
WITH given AS (
  SELECT $1 || '_' || "group" AS name, to_regrole(format('%I', $1 || '_' || "group"))::oid AS role,
         "right", kind, object, columns, string_to_array(names, ' ') AS names
    FROM jsonb_to_recordset($2::jsonb)
      AS g ("group" text, "right" text, kind text, object text, columns boolean, names text)),
ns AS (SELECT oid FROM pg_namespace WHERE nspname = $1),
lacking AS (
  SELECT g.name, g."right" || ' on the schema' AS given
    FROM given g, ns WHERE g.kind = 'schema' AND g.role IS NOT NULL AND NOT has_schema_privilege(g.role, ns.oid, g."right")
  UNION ALL
  SELECT g.name, g."right" || ' on ' || g.object
    FROM given g, ns JOIN pg_class c ON c.relnamespace = ns.oid
   WHERE c.relname = g.object AND g.kind = CASE c.relkind WHEN 'S' THEN 'sequence' ELSE 'table' END
     AND c.relkind IN ('r', 'v', 'S') AND g.role IS NOT NULL
     AND NOT CASE WHEN g.kind = 'sequence' THEN has_sequence_privilege(g.role, c.oid, g."right")
                  WHEN g.columns THEN has_any_column_privilege(g.role, c.oid, g."right")
                   AND NOT EXISTS (SELECT FROM pg_attribute a
                                    WHERE a.attrelid = c.oid AND a.attname = ANY (g.names)
                                      AND NOT has_column_privilege(g.role, c.oid, a.attnum, g."right"))
                  ELSE has_table_privilege(g.role, c.oid, g."right") END
  UNION ALL
  SELECT g.name, g."right" || ' on ' || g.object
    FROM given g, ns JOIN pg_proc p ON p.pronamespace = ns.oid
   WHERE p.proname = g.object AND g.kind = 'function' AND g.role IS NOT NULL
     AND NOT has_function_privilege(g.role, p.oid, g."right")),
owner AS (
  SELECT relowner AS role FROM pg_class
   WHERE oid = 'outbox.migration'::regclass AND relowner = to_regrole(format('%I', $1 || '_owner'))::oid)
SELECT 'warning', name, format('the role %s lacks rights that this version gives it: %s',
                               name, string_agg(DISTINCT given, ', ')),
       'schema.GrantRoles (outbox roles apply), which belongs after each schema.Migrate'
  FROM lacking, owner GROUP BY name
 UNION ALL
SELECT 'warning', c.relname, format('%s does not belong to %s, which owns the outbox: functions that work with the ' ||
         'owner''s rights cannot use it', c.relname, $1 || '_owner'),
       'schema.GrantRoles (outbox roles apply), as its owner or a superuser'
  FROM pg_class c, ns, owner
 WHERE c.relnamespace = ns.oid AND c.relkind IN ('r', 'v', 'S') AND c.relowner <> owner.role
 ORDER BY 2`

const securedSQL = `/* outbox: tables with row level security */
SELECT COALESCE(string_agg(c.relname, ', ' ORDER BY c.relname), '')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relrowsecurity AND c.relname = ANY (string_to_array($2, ' '))`

// Roles that may delete tasks may run relays. As schema.CheckRowSecurity, for each of them.
const hiddenSQL = `/* outbox: roles of relays that may not see rows */
SELECT r.rolname, string_agg(c.relname, ', ' ORDER BY c.relname), min(c.oid::regclass::text), format('%I', r.rolname)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN pg_roles r
 WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relrowsecurity AND c.relname = ANY (string_to_array($2, ' '))
   AND r.rolcanlogin AND NOT r.rolsuper AND NOT r.rolbypassrls AND has_table_privilege(r.oid, 'outbox.task'::regclass, 'DELETE')
   AND (c.relforcerowsecurity OR NOT pg_has_role(r.oid, c.relowner, 'USAGE'))
   AND EXISTS (
     SELECT 1 FROM (VALUES ('r'), ('w'), ('d')) AS k (command)
      WHERE (k.command = 'r' OR c.relname NOT IN ('migration', 'audit'))
        AND NOT EXISTS (
          SELECT 1 FROM pg_policy p
           WHERE p.polrelid = c.oid AND p.polpermissive AND p.polcmd::text IN ('*', k.command)
             AND (0::oid = ANY (p.polroles)
               OR EXISTS (SELECT 1 FROM unnest(p.polroles) AS o (role) WHERE pg_has_role(r.oid, o.role, 'USAGE')))))
 GROUP BY r.rolname ORDER BY r.rolname`

func checkRowSecurity(ctx context.Context, v *visit) error {
	var secured string
	tables := names("table")
	if err := v.row(ctx, securedSQL, []any{v.schema, tables}, &secured); err != nil || secured == "" {
		return err
	}
	if err := schema.CheckRowSecurity(ctx, v.tx, schema.Schema(v.schema)); errors.Is(err, schema.ErrRowSecurity) {
		_, do, _ := strings.Cut(err.Error(), "owner, ")
		v.add("row-security", SeverityCritical, "", "row level security hides rows from this role: the other checks see too little, "+
			"and a relay with this role does not start", do)
	} else if err != nil {
		return err
	}
	var role, of, first, quoted string
	err := v.each(ctx, hiddenSQL, []any{v.schema, tables}, []any{&role, &of, &first, &quoted}, func() {
		v.add("row-security", SeverityCritical, role, fmt.Sprintf("row level security hides rows of %s from the role %s: "+
			"a relay with this role finds no task, and does not start", of, role),
			fmt.Sprintf("for each of these tables ALTER TABLE %[1]s DISABLE ROW LEVEL SECURITY, "+
				"or CREATE POLICY outbox ON %[1]s TO %[2]s USING (true) WITH CHECK (true)", first, quoted))
	})
	if err == nil && len(v.found) == 0 {
		v.add("row-security", SeverityInfo, "",
			"row level security is on for "+secured+", and hides all rows from no role that may run a relay",
			"leave it off, unless you need it: the roles of schema.GrantRoles guard the tables")
	}
	return err
}

const foreignKeysSQL = `/* outbox: foreign keys of the app */
SELECT 'critical', k.conname, format('the foreign key %s of the table %s %s when a row of %s is deleted: %s',
       k.conname, k.conrelid::regclass,
       CASE k.confdeltype WHEN 'c' THEN 'deletes the app''s row' WHEN 'n' THEN 'sets the app''s reference to NULL'
            WHEN 'd' THEN 'sets the app''s reference to its default'
            ELSE 'refuses that, so the task cannot run or finish' END,
       c.relname,
       CASE c.relname WHEN 'task' THEN 'each claim of a Tx or Batch task deletes its row, also if its attempt ' ||
            'fails and puts the row back, and so does each task that finishes'
            ELSE 'the outbox does that in its normal work' END),
       format('ALTER TABLE %s DROP CONSTRAINT %I; keep the task''s id without a foreign key',
              k.conrelid::regclass, k.conname)
  FROM pg_constraint k JOIN pg_class c ON c.oid = k.confrelid JOIN pg_class f ON f.oid = k.conrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE k.contype = 'f' AND n.nspname = $1 AND f.relnamespace <> n.oid
 ORDER BY 2, 3 LIMIT 1000`

// A failed attempt of a Tx or Batch task puts its row back without a column of the app's. A lease keeps the
// row until the task ends; dead letters have the value only in a column of that name.
const ownColumnsSQL = `/* outbox: columns of the app on its tables */
SELECT CASE WHEN required THEN 'critical' WHEN of_task THEN 'warning' ELSE 'info' END, subject,
       format('the column %s is not the outbox''s', subject) || CASE
         WHEN required THEN ', and NOT NULL without a default: rows that the outbox writes are refused'
         WHEN of_task THEN ': its value is lost when an attempt of a Tx or Batch task fails' || CASE
           WHEN dies THEN ', and when the task dies, as dead_task has no such column' ELSE '' END
         ELSE ', which neither reads nor writes it' END,
       CASE WHEN required THEN format('ALTER TABLE %s ALTER COLUMN %I DROP NOT NULL; ', of, name) ELSE '' END ||
       format('keep it in a table of the app, by the task''s id; once its values are there, ' ||
              'ALTER TABLE %s DROP COLUMN %I', of, name)
  FROM (SELECT c.relname || '.' || a.attname AS subject, c.oid::regclass AS of, a.attname AS name,
               a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS required,
               c.relname = 'task' AS of_task, NOT EXISTS (
                 SELECT FROM pg_attribute d JOIN pg_class r ON r.oid = d.attrelid
                  WHERE r.relnamespace = c.relnamespace AND r.relname = 'dead_task' AND d.attname = a.attname) AS dies
          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = $1 AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
           AND c.relname || '.' || a.attname <> ALL (string_to_array($2, ' '))
           AND c.relname = ANY (string_to_array($3, ' '))) AS own
 ORDER BY subject`

const ownTriggersSQL = `/* outbox: triggers of the app on its tables */
SELECT 'info', g.tgname,
       format('the trigger %s on the table %s is not the outbox''s: ', g.tgname, c.relname) || CASE c.relname
         WHEN 'task' THEN 'it sees an INSERT for each task and again for each failed attempt of a Tx or Batch task, ' ||
           'an UPDATE for each lease and promotion, and a DELETE for each claim of a Tx or Batch task, ' ||
           'and for each task that finishes or dies'
         WHEN 'dead_task' THEN 'it sees an INSERT when a task dies, and a DELETE when it is redriven or purged'
         WHEN 'done_task' THEN 'it sees an INSERT when a task of a type that keeps its tasks finishes, ' ||
           'and a DELETE when that expires'
         ELSE 'it runs in the relays'' own statements' END,
       'keep it fast, and let it raise no error: an error fails the claim or the result'
  FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relkind = 'r' AND NOT g.tgisinternal AND g.tgenabled <> 'D'
   AND g.tgname <> ALL (string_to_array($2, ' ')) AND c.relname = ANY (string_to_array($3, ' '))
 ORDER BY c.relname, g.tgname LIMIT 1000`
