package doctor

import (
	"encoding/json"

	"github.com/txoutbox/outbox/internal/access"
)

// grants are the rights of this version, as JSON, without the schema's name.
func (v *visit) grants() any {
	text, err := json.Marshal(access.Grants())
	if err != nil {
		panic(err) // they are texts
	}
	return string(text)
}

// A group that lacks a right, and an object that does not belong to the group of owners, if that owns
// the outbox. schema-objects reports missing objects.
const rolesSQL = `/* outbox: rights that roles lack */
WITH given AS (
  SELECT $1 || '_' || "group" AS name, to_regrole(format('%I', $1 || '_' || "group"))::oid AS role,
         "right", kind, object, columns
    FROM jsonb_to_recordset($2::jsonb) AS g ("group" text, "right" text, kind text, object text, columns boolean)),
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
