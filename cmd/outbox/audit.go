package main

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

func (a *app) auditCommand() *cobra.Command {
	var p pageFlags
	c := &cobra.Command{
		Use: "audit", Short: "list actions by hand with their actors, the latest first", Args: cobra.NoArgs,
		Example: "  outbox audit -limit 10",
		Long: `Lists the actions of this command and of the dashboard. An action in several transactions has an
entry for each; so has an action on more tasks than one entry can name. hand_back, reindex, repair
and grant_roles have an entry before them, with the count 0, and one after them: that ends in
": done", with the count of hand_back or repair, or in ": failed".`,
		RunE: page(a, &p, "entries", func(c *admin.Client, ctx context.Context) ([]admin.AuditEntry, string, error) {
			page, err := c.Audit(ctx, admin.AuditQuery{After: p.after, Limit: p.limit})
			return page.Entries, page.Next, err
		}, func(found []admin.AuditEntry) *table {
			return tableOf("AT ACTOR TOOL ACTION >COUNT TARGET", found, func(e admin.AuditEntry) (any, []any) {
				return e, []any{e.At, e.Actor, e.Tool, e.Action, e.Count, cut(e.Target, 80)}
			})
		}),
	}
	p.add(c)
	return c
}
