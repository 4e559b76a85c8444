package doctor

import (
	"encoding/json"
	"regexp"

	"github.com/txoutbox/outbox/schema"
)

// The script of the roles is parsed: its GRANT statements, some of which are executed as texts, and the
// rights in each.
var (
	granted = regexp.MustCompile(`(?s)(?:^|\n|')GRANT (.*?)\s+ON (FUNCTION|SEQUENCE|SCHEMA|TABLE)?\s*(.*?)\s+TO (.*?)[;']`)
	right   = regexp.MustCompile(`\b(SELECT|INSERT|UPDATE|DELETE|EXECUTE)\b`)
	columns = regexp.MustCompile(`\([^)]*\)`)
	name    = regexp.MustCompile(`outbox[_.](\w+)`)
)

// grants are the rights of this version on tables and functions, as JSON, without the schema's name.
func (v *visit) grants() any {
	type grant struct {
		Group  string `json:"group"`
		Kind   string `json:"kind"`
		Object string `json:"object"`
	}
	script, err := schema.RolesSQL()
	if err != nil {
		panic(err) // the name is valid
	}
	var all []grant
	for _, m := range granted.FindAllStringSubmatch(comment.ReplaceAllString(script, ""), -1) {
		if m[2] == "SCHEMA" || m[2] == "SEQUENCE" {
			continue
		}
		for _, kind := range right.FindAllString(columns.ReplaceAllString(m[1], ""), -1) {
			for _, object := range name.FindAllStringSubmatch(m[3], -1) {
				for _, group := range name.FindAllStringSubmatch(m[4], -1) {
					all = append(all, grant{group[1], kind, object[1]})
				}
			}
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // they are texts
	}
	return string(text)
}

// A group that lacks a right, and an object that does not belong to the group of owners, if that owns
// the outbox. schema-objects reports missing objects.
const rolesSQL = `/* outbox: rights that roles lack */
WITH given AS (
  SELECT $1 || '_' || "group" AS name, to_regrole(format('%I', $1 || '_' || "group"))::oid AS role, kind, object
    FROM jsonb_to_recordset($2::jsonb) AS g ("group" text, kind text, object text)),
ns AS (SELECT oid FROM pg_namespace WHERE nspname = $1),
lacking AS (
  SELECT g.name, g.kind || ' on ' || g.object AS given
    FROM given g, ns JOIN pg_class c ON c.relnamespace = ns.oid
   WHERE c.relname = g.object AND c.relkind IN ('r', 'v') AND g.kind <> 'EXECUTE' AND g.role IS NOT NULL
     AND NOT CASE g.kind WHEN 'DELETE' THEN has_table_privilege(g.role, c.oid, 'DELETE')
                  ELSE has_any_column_privilege(g.role, c.oid, g.kind) END
  UNION ALL
  SELECT g.name, g.kind || ' on ' || g.object
    FROM given g, ns JOIN pg_proc p ON p.pronamespace = ns.oid
   WHERE p.proname = g.object AND g.kind = 'EXECUTE' AND g.role IS NOT NULL
     AND NOT has_function_privilege(g.role, p.oid, 'EXECUTE')),
owner AS (
  SELECT relowner AS role FROM pg_class
   WHERE oid = 'outbox.migration'::regclass AND relowner = to_regrole(format('%I', $1 || '_owner'))::oid)
SELECT 'warning', name, format('the role %s lacks rights that this version gives it: %s',
                               name, string_agg(given, ', ')),
       'schema.GrantRoles (outbox roles apply), which belongs after each schema.Migrate'
  FROM lacking, owner GROUP BY name
 UNION ALL
SELECT 'warning', c.relname, format('%s does not belong to %s, which owns the outbox: functions that work with the ' ||
         'owner''s rights cannot use it', c.relname, $1 || '_owner'),
       'schema.GrantRoles (outbox roles apply), as its owner or a superuser'
  FROM pg_class c, ns, owner
 WHERE c.relnamespace = ns.oid AND c.relkind IN ('r', 'v', 'S') AND c.relowner <> owner.role
 ORDER BY 2`
