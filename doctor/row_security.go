package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/txoutbox/outbox/schema"
)

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
