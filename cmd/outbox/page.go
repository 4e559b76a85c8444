package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

// pageFlags are the flags of a list that has pages.
type pageFlags struct {
	limit int
	after string
}

func (p *pageFlags) add(c *cobra.Command) {
	c.Flags().IntVar(&p.limit, "limit", 50, "the most rows, up to 1000")
	c.Flags().StringVar(&p.after, "after", "", "the next page: the place that the last page printed")
	_ = c.RegisterFlagCompletionFunc("after", cobra.NoFileCompletions)
}

// listed reads a page.
func listed[T any](c *cobra.Command, a *app, p pageFlags,
	list func(*admin.Client, context.Context, admin.Page) ([]T, string, error)) (found []T, next string, err error) {
	if p.limit < 1 || p.limit > 1000 {
		return nil, "", usage("--limit %d: must be between 1 and 1000", p.limit)
	}
	err = a.read(c.Context(), func(ctx context.Context, c *admin.Client) (err error) {
		found, next, err = list(c, ctx, admin.Page{Limit: p.limit, After: p.after})
		return err
	})
	return found, next, err
}

// printPage prints a page of a list under a name, and the flag of the next page on stderr.
func (a *app) printPage(name string, t *table, next string) error {
	if next == "" {
		return a.out.print(object{{name, t.json}, {"next", nil}}, t.lines()...)
	}
	if !a.out.json {
		defer fmt.Fprintf(a.err, "there may be more: -after %s\n", clean(next))
	}
	return a.out.print(object{{name, t.json}, {"next", next}}, t.lines()...)
}
