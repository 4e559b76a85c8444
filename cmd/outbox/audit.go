package main

import (
	"context"
	"database/sql"
	"errors"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/audit"
)

// entry is an audit.Entry in JSON.
type entry struct {
	EntryID int64  `json:"entry_id"`
	At      stamp  `json:"at"`
	Actor   string `json:"actor"`
	Tool    string `json:"tool"`
	Action  string `json:"action"`
	Target  string `json:"target"`
	Count   int64  `json:"count"`
}

func (a *app) auditCommand() *cobra.Command {
	var limit int
	var after string
	c := &cobra.Command{
		Use: "audit", Short: "list who did what by hand, the latest first", Args: cobra.NoArgs, Example: "  outbox audit -limit 10",
		Long: `Lists what was done by this command and by the dashboard. What is done in several transactions has an entry for each, and so has what names more tasks than fit
into one. What cannot be written down in its own transaction (hand_back, reindex, grant_roles) has one before it, whose count is 0, and one after it: that
ends in ": done", with the count of hand_back, or in ": failed".`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkLimit(limit); err != nil {
				return err
			}
			before := int64(0)
			if after != "" {
				var err error
				if before, err = strconv.ParseInt(after, 10, 64); err != nil || before < 1 {
					return usage("--after %q is not what a page ended with", after)
				}
			}
			var found []audit.Entry
			err := a.read(c.Context(), func(ctx context.Context, q *sql.Tx) (err error) {
				found, err = audit.List(ctx, q, before, limit, audit.Schema(a.schema))
				return err
			})
			if err != nil {
				return err
			}
			all := []entry{}
			for _, e := range found {
				all = append(all, entry{e.EntryID, stamp{e.At}, e.Actor, e.Tool, e.Action, e.Target, e.Count})
			}
			next := ""
			if len(found) == limit {
				next = strconv.FormatInt(found[limit-1].EntryID, 10)
			}
			return a.out.print(page{"entries": all, "next": orNull(next)}, func() error {
				t := newTable("AT", "ACTOR", "TOOL", "ACTION", ">COUNT", "TARGET")
				for _, e := range found {
					t.add(local(e.At), e.Actor, e.Tool, e.Action, e.Count, cut(e.Target, 80))
				}
				return errors.Join(a.out.table(t), a.more(next))
			})
		},
	}
	pageFlags(c, &limit, &after)
	return c
}
