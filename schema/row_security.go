package schema

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/schemaname"
)

var createsTable = regexp.MustCompile(`CREATE TABLE IF NOT EXISTS outbox\.(\w+)`)

// tables are the names of the outbox's tables, as an SQL list.
var tables = sync.OnceValue(func() string {
	var names []string
	for _, text := range migrations() {
		for _, m := range createsTable.FindAllStringSubmatch(text, -1) {
			names = append(names, "'"+m[1]+"'")
		}
	}
	return strings.Join(names, ", ")
})

// A role sees no row if row level security is active for it and no policy lets it. Policies that let
// it see some rows are the app's to judge. Commands that the role has no right to are not asked for,
// and the versions and the audit log are only read and added to.
const hiddenSQL = `-- schema: tables whose rows are hidden
SELECT current_user, COALESCE(pg_catalog.string_agg(c.relname, ', ' ORDER BY c.relname), '')
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = '%s' AND c.relname IN (%s) AND pg_catalog.row_security_active(c.oid)
   AND EXISTS (
     SELECT 1 FROM (VALUES ('r', 'SELECT'), ('w', 'UPDATE'), ('d', 'DELETE')) AS k (command, privilege)
      WHERE (k.command = 'r' OR c.relname NOT IN ('migration', 'audit'))
        AND CASE k.command WHEN 'd' THEN pg_catalog.has_table_privilege(c.oid, 'DELETE')
              ELSE pg_catalog.has_any_column_privilege(c.oid, k.privilege) END
        AND NOT EXISTS (
          SELECT 1 FROM pg_catalog.pg_policy p
           WHERE p.polrelid = c.oid AND p.polpermissive AND p.polcmd IN ('*', k.command::pg_catalog."char")
             AND (0::pg_catalog.oid = ANY (p.polroles)
               OR EXISTS (SELECT 1 FROM pg_catalog.unnest(p.polroles) AS r (role)
                           WHERE pg_catalog.pg_has_role(r.role, 'USAGE')))))`

// CheckRowSecurity returns nil unless row level security hides all rows of a table of the outbox
// from the role, or keeps it from changing them. Relays call it at their start and every half
// minute: to a role that sees nothing, an outbox looks idle.
//
// Owners of the tables (without FORCE ROW LEVEL SECURITY), superusers and roles with BYPASSRLS see
// all rows. Rows that a policy of the app's hides are not looked for.
//
// Errors: ErrRowSecurity, which names tables and role and says what to do; an invalid name before any
// SQL; or else the query's own.
func CheckRowSecurity(ctx context.Context, q Querier, opts ...SchemaOption) error {
	name, err := nameOf(opts)
	if err != nil {
		return err
	}
	return hidden(ctx, q, name, tables())
}

// hidden looks at the tables of an SQL list.
func hidden(ctx context.Context, q Querier, name, of string) error {
	var role, found string
	err := q.QueryRowContext(ctx, fmt.Sprintf(hiddenSQL, name, of)).Scan(&role, &found)
	if err != nil {
		return fmt.Errorf("schema: look for row level security: %w", pgerr.WithoutDSN(err))
	}
	if found == "" {
		return nil
	}
	first, rest, _ := strings.Cut(found, ", ")
	and, at := "", name
	if name != schemaname.Default {
		at = quote(name)
	}
	if rest != "" {
		and = ", and likewise for " + rest
	}
	return fmt.Errorf("%[1]w: row level security hides rows of %[2]s.%[3]s from the role %[4]q: as the table's owner, "+
		`ALTER TABLE %[2]s.%[3]s DISABLE ROW LEVEL SECURITY, or CREATE POLICY outbox ON %[2]s.%[3]s TO %[5]s USING (true) WITH CHECK (true)%[6]s`,
		ErrRowSecurity, at, first, role, quote(role), and)
}
