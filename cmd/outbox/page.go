package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

// page is an object in JSON: what a command did, or a page of a list.
type page map[string]any

// pageFlags are the flags of a list that has pages.
type pageFlags struct {
	limit int
	after string
}

func (p *pageFlags) add(c *cobra.Command) {
	c.Flags().IntVar(&p.limit, "limit", 50, "so many at most, up to 1000")
	c.Flags().StringVar(&p.after, "after", "", "the next page: what the last one ended with")
	_ = c.RegisterFlagCompletionFunc("after", cobra.NoFileCompletions)
}

// listed reads a page.
func listed[T any](c *cobra.Command, a *app, p *pageFlags, list func(*admin.Client, context.Context, admin.Page) ([]T, string, error)) (found []T, next string, err error) {
	if p.limit < 1 || p.limit > 1000 {
		return nil, "", usage("--limit %d: must be between 1 and 1000", p.limit)
	}
	err = a.read(c.Context(), func(ctx context.Context, c *admin.Client) (err error) {
		found, next, err = list(c, ctx, admin.Page{Limit: p.limit, After: p.after})
		return err
	})
	return found, next, err
}

// mapped is f of each; not nil.
func mapped[T, U any](in []T, f func(T) U) []U {
	out := make([]U, 0, len(in))
	for _, one := range in {
		out = append(out, f(one))
	}
	return out
}

// more says on stderr how the next page is had.
func (a *app) more(next string) error {
	if next != "" {
		fmt.Fprintf(a.err, "there may be more: -after %s\n", clean(next))
	}
	return nil
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
