package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) reindexCommand() *cobra.Command {
	return &cobra.Command{
		Use: "reindex", Short: "rebuild all indexes while relays work", Args: cobra.NoArgs, Example: "  outbox reindex",
		Long: `Rebuilds the outbox's indexes with REINDEX INDEX CONCURRENTLY, one after the other: relays and
enqueueing go on. Each build waits for all older transactions, so --timeout does not bound it. Ctrl-C
ends it; the next reindex drops the leftovers. The role must own the tables.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.connect(c.Context()); err != nil {
				return err
			}
			fmt.Fprintln(a.err, "rebuilding the indexes: each waits for the open transactions")
			found, err := a.client.Reindex(c.Context())
			if err != nil && len(found) == 0 {
				return err
			}
			t := newTable("TABLE INDEX >BEFORE >AFTER")
			for _, i := range found {
				t.add(i, i.Table, i.Name, size(i.BytesBefore), size(i.BytesAfter))
			}
			return errors.Join(err, a.out.print(object{{"indexes", t.json}}, t.lines()...)) // also with an error
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
