package main

import (
	"errors"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

// entry is an admin.Entry in JSON.
type entry struct {
	EntryID int64  `json:"entry_id"`
	At      stamp  `json:"at"`
	Actor   string `json:"actor"`
	Tool    string `json:"tool"`
	Action  string `json:"action"`
	Target  string `json:"target"`
	Count   int64  `json:"count"`
}

func newEntry(e admin.Entry) entry {
	return entry{e.EntryID, stamp{e.At}, e.Actor, e.Tool, e.Action, e.Target, e.Count}
}

func (a *app) auditCommand() *cobra.Command {
	var p pageFlags
	c := &cobra.Command{
		Use: "audit", Short: "list who did what by hand, the latest first", Args: cobra.NoArgs, Example: "  outbox audit -limit 10",
		Long: `Lists what was done by this command and by the dashboard. What is done in several transactions has an entry for each, and so has what names more tasks than fit
into one. What cannot be written down in its own transaction (hand_back, reindex, grant_roles) has one before it, whose count is 0, and one after it: that
ends in ": done", with the count of hand_back, or in ": failed".`,
		RunE: func(c *cobra.Command, _ []string) error {
			found, next, err := listed(c, a, &p, (*admin.Client).Audit)
			if err != nil {
				return err
			}
			return a.out.print(page{"entries": mapped(found, newEntry), "next": orNull(next)}, func() error {
				t := newTable("AT", "ACTOR", "TOOL", "ACTION", ">COUNT", "TARGET")
				for _, e := range found {
					t.add(local(e.At), e.Actor, e.Tool, e.Action, e.Count, cut(e.Target, 80))
				}
				return errors.Join(a.out.table(t), a.more(next))
			})
		},
	}
	p.add(c)
	return c
}
