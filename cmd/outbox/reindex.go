package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) reindexCommand() *cobra.Command {
	return &cobra.Command{
		Use: "reindex", Short: "build all indexes anew, beside the work", Args: cobra.NoArgs, Example: "  outbox reindex",
		Long: `Builds the outbox's indexes anew with REINDEX INDEX CONCURRENTLY, one after the other: relays and
enqueueing go on. Each waits for all transactions that are older than its build, so --timeout does
not bound it; ctrl-C ends it, and what it leaves behind the next reindex drops. The role must own
the tables.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.connect(c.Context()); err != nil {
				return err
			}
			fmt.Fprintln(a.err, "building indexes anew: each waits for the transactions that are open")
			found, err := a.client.Reindex(c.Context())
			if err != nil && len(found) == 0 {
				return err
			}
			t := newTable("TABLE", "INDEX", ">BEFORE", ">AFTER")
			for _, i := range found {
				t.add(i, i.Table, i.Name, size(i.Before), size(i.After))
			}
			return errors.Join(err, a.out.print(object{{"indexes", t.json}}, t.lines()...)) // what was done, also with an error
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
