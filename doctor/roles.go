package doctor

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/txoutbox/outbox/schema"
)

// The script of the roles is parsed: its GRANT statements, and the rights in each.
var (
	granted = regexp.MustCompile(`(?s)(?:^|\n)GRANT (.*?)\s+ON (FUNCTION|SEQUENCE|SCHEMA|TABLE)?\s*(.*?)\s+TO (.*?);`)
	right   = regexp.MustCompile(`\b(SELECT|INSERT|UPDATE|DELETE|EXECUTE)\b`)
	columns = regexp.MustCompile(`\([^)]*\)`)
)

// grant is one right that a role has by this version.
type grant struct{ group, right, object string } // without the schema's name

// grants are all of tables and functions.
func grants() (out []grant) {
	script, err := schema.RolesSQL("outbox")
	if err != nil {
		panic(err) // the name is valid
	}
	for _, m := range granted.FindAllStringSubmatch(comment.ReplaceAllString(script, ""), -1) {
		if m[2] == "SCHEMA" || m[2] == "SEQUENCE" {
			continue
		}
		for _, r := range right.FindAllString(columns.ReplaceAllString(m[1], ""), -1) {
			for _, object := range strings.Split(m[3], ",") {
				for _, group := range strings.Split(m[4], ",") {
					out = append(out, grant{
						strings.TrimPrefix(strings.TrimSpace(group), "outbox_"), r,
						strings.TrimPrefix(strings.TrimSpace(object), "outbox."),
					})
				}
			}
		}
	}
	return out
}

const ownedSQL = `/* outbox: whether there are roles */
SELECT (SELECT relowner FROM pg_class WHERE oid = 'outbox.migration'::regclass) IS NOT DISTINCT FROM to_regrole($1)::oid`

// schema-objects reports missing objects.
const lackingSQL = `/* outbox: rights that roles lack */
WITH given AS (
  SELECT g.role, g.kind, g.object
    FROM unnest(string_to_array($2, ' '), string_to_array($3, ' '), string_to_array($4, ' ')) AS g (role, kind, object)),
ns AS (SELECT oid FROM pg_namespace WHERE nspname = $1)
SELECT g.role, g.kind, g.object
  FROM given g, ns JOIN pg_class c ON c.relnamespace = ns.oid
 WHERE c.relname = g.object AND c.relkind IN ('r', 'v') AND g.kind <> 'EXECUTE' AND to_regrole(g.role) IS NOT NULL
   AND NOT CASE g.kind WHEN 'DELETE' THEN has_table_privilege(to_regrole(g.role), c.oid, 'DELETE')
                ELSE has_any_column_privilege(to_regrole(g.role), c.oid, g.kind) END
UNION ALL
SELECT g.role, g.kind, g.object
  FROM given g, ns JOIN pg_proc p ON p.pronamespace = ns.oid
 WHERE p.proname = g.object AND g.kind = 'EXECUTE' AND to_regrole(g.role) IS NOT NULL
   AND NOT has_function_privilege(to_regrole(g.role), p.oid, 'EXECUTE')
UNION ALL
SELECT '', 'owner', c.relname FROM pg_class c, ns
 WHERE c.relnamespace = ns.oid AND c.relkind IN ('r', 'v', 'S') AND c.relowner <> to_regrole($5)::oid
 ORDER BY 1, 3, 2`

func checkRoles(ctx context.Context, v *visit) error {
	owner := v.schema + "_owner"
	if _, err := schema.RolesSQL(v.schema); err != nil { // too long a name for roles
		return nil
	}
	var owned bool
	if err := v.row(ctx, ownedSQL, []any{quote(owner)}, &owned); err != nil || !owned {
		return err
	}
	var roles, kinds, objects []string
	for _, g := range grants() {
		roles, kinds, objects = append(roles, quote(v.schema+"_"+g.group)), append(kinds, g.right),
			append(objects, g.object)
	}
	lacking := map[string][]string{}
	var role, kind, object string
	args := []any{v.schema, strings.Join(roles, " "), strings.Join(kinds, " "), strings.Join(objects, " "),
		quote(owner)}
	err := v.each(ctx, lackingSQL, args, []any{&role, &kind, &object}, func() {
		if kind == "owner" {
			v.add("roles", Warning, object, fmt.Sprintf("%s does not belong to %s, which owns the outbox: "+
				"functions that work with the owner's rights cannot use it", object, owner),
				"schema.GrantRoles (outbox roles apply), as its owner or a superuser")
			return
		}
		role = strings.Trim(role, `"`)
		lacking[role] = append(lacking[role], kind+" on "+object)
	})
	if err != nil {
		return err
	}
	for role, rights := range lacking {
		v.add("roles", Warning, role,
			fmt.Sprintf("the role %s lacks rights that this version gives it: %s", role, strings.Join(rights, ", ")),
			"schema.GrantRoles (outbox roles apply), which belongs after each schema.Migrate")
	}
	return nil
}
