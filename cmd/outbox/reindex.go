package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

// reindexed is an admin.Index in JSON.
type reindexed struct {
	Table  string `json:"table"`
	Index  string `json:"index"`
	Before int64  `json:"before_bytes"`
	After  int64  `json:"after_bytes"`
}

func (a *app) reindexCommand() *cobra.Command {
	return &cobra.Command{
		Use: "reindex", Short: "build all indexes anew, beside the work", Args: cobra.NoArgs, Example: "  outbox reindex",
		Long: `Builds the outbox's indexes anew with REINDEX INDEX CONCURRENTLY, one after the other: relays and enqueueing go on. Each waits for all transactions that are older
than its build, so --timeout does not bound it; ctrl-C ends it, and what it leaves behind the next reindex drops. The role must own the tables.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.connect(c.Context()); err != nil {
				return err
			}
			fmt.Fprintln(a.err, "building indexes anew: each waits for the transactions that are open")
			found, err := a.client.Reindex(c.Context())
			all := mapped(found, func(i admin.Index) reindexed { return reindexed{i.Table, i.Name, i.Before, i.After} })
			if err != nil && len(all) == 0 {
				return err
			}
			return errors.Join(err, a.out.print(page{"indexes": all}, func() error { // what was done, also with an error
				t := newTable("TABLE", "INDEX", ">BEFORE", ">AFTER")
				for _, r := range found {
					t.add(r.Table, r.Name, size(r.Before), size(r.After))
				}
				return a.out.table(t)
			}))
		},
	}
}

// size is a number of bytes for people.
func size(n int64) string {
	if n < 10<<20 {
		return fmt.Sprintf("%d kB", n>>10)
	}
	return fmt.Sprintf("%d MB", n>>20)
}
