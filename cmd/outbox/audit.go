package main

import (
	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

func (a *app) auditCommand() *cobra.Command {
	var p pageFlags
	c := &cobra.Command{
		Use: "audit", Short: "list who did what by hand, the latest first", Args: cobra.NoArgs,
		Example: "  outbox audit -limit 10",
		Long: `Lists what was done by this command and by the dashboard. What is done in several transactions
has an entry for each, and so has what names more tasks than fit into one. What cannot be written
down in its own transaction (hand_back, reindex, repair, grant_roles) has one before it, whose count is 0,
and one after it: that ends in ": done", with the count of hand_back or repair, or in ": failed".`,
		RunE: func(c *cobra.Command, _ []string) error {
			found, next, err := listed(c, a, p, (*admin.Client).Audit)
			if err != nil {
				return err
			}
			t := newTable("AT", "ACTOR", "TOOL", "ACTION", ">COUNT", "TARGET")
			for _, e := range found {
				t.add(e, e.At, e.Actor, e.Tool, e.Action, e.Count, cut(e.Target, 80))
			}
			return a.printPage("entries", t, next)
		},
	}
	p.add(c)
	return c
}
