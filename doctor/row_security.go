package doctor

import (
	"context"
	"errors"
	"strings"

	"github.com/txoutbox/outbox/schema"
)

const securedSQL = `/* outbox: tables with row level security */
SELECT COALESCE(string_agg(c.relname, ', ' ORDER BY c.relname), '')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relrowsecurity`

func checkRowSecurity(ctx context.Context, v *visit) error {
	var secured string
	if err := v.row(ctx, securedSQL, []any{v.schema}, &secured); err != nil || secured == "" {
		return err
	}
	err := schema.CheckRowSecurity(ctx, v.tx, v.schema)
	if errors.Is(err, schema.ErrRowSecurity) {
		_, do, _ := strings.Cut(err.Error(), "owner, ")
		v.add("row-security", Critical, "", "row level security hides rows from this role: the other checks see too "+
			"little, "+
			"and a relay with this role does not start", do)
		return nil
	}
	v.add("row-security", Info, "", "row level security is on for "+secured+", and hides no rows from this role",
		"leave it off, unless you need it: the roles of schema.GrantRoles guard the tables")
	return err
}
