package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

// run is the body of a command.
type run = func(c *cobra.Command, args []string) error

// list reads a list and prints it under its name. A row is a value for JSON and the cells of the table.
func list[T any](a *app, name string, read func(*admin.Client, context.Context) ([]T, error), columns string,
	row func(T) (any, []any)) run {
	return func(c *cobra.Command, _ []string) error {
		found, err := get(c.Context(), a, read)
		if err != nil {
			return err
		}
		t := tableOf(columns, found, row)
		return a.out.print(object{{name, t.json}}, t.lines()...)
	}
}

// pageFlags are the flags of a list that has pages.
type pageFlags struct {
	limit int
	after string
}

func (p *pageFlags) add(c *cobra.Command) {
	c.Flags().IntVar(&p.limit, "limit", 50, "the most rows, up to 1000")
	c.Flags().StringVar(&p.after, "after", "", "the next page: the place that the last page printed")
}

// taskPage is page for tasks, whose optional columns stand before the last one.
func taskPage(a *app, p *pageFlags,
	read func(*admin.Client, context.Context) (admin.TaskPage, error), columns string,
	row func(admin.Task) (any, []any)) run {
	return page(a, p, "tasks", func(c *admin.Client, ctx context.Context) ([]admin.Task, string, error) {
		page, err := read(c, ctx)
		return page.Tasks, page.Next, err
	}, func(found []admin.Task) *table {
		names, more := strings.Fields(columns), taskview.Columns(found)
		last := len(names) - 1
		for i, c := range more {
			names = slices.Insert(names, last+i, strings.ReplaceAll(strings.ToUpper(c.Name), " ", "_"))
		}
		return tableOf(strings.Join(names, " "), found, func(t admin.Task) (any, []any) {
			value, cells := row(t)
			for i, c := range more {
				cells = slices.Insert(cells, last+i, any(c.Of(t)))
			}
			return value, cells
		})
	})
}

// page reads a page of a list and prints it as list does, with the flag of the next page on stderr.
func page[T any](a *app, p *pageFlags, name string,
	read func(*admin.Client, context.Context) ([]T, string, error), rows func([]T) *table) run {
	return func(c *cobra.Command, _ []string) error {
		if p.limit < 1 || p.limit > 1000 {
			return usage("--limit %d: must be between 1 and 1000", p.limit)
		}
		var next string
		found, err := get(c.Context(), a, func(c *admin.Client, ctx context.Context) (found []T, err error) {
			found, next, err = read(c, ctx)
			return found, err
		})
		if err != nil {
			return err
		}
		t, result := rows(found), object{{name, nil}, {"next", nil}}
		if result[0].value = t.json; next != "" {
			result[1].value = next
			if !a.out.json {
				defer fmt.Fprintf(a.err, "there may be more: -after %s\n", clean(next))
			}
		}
		return a.out.print(result, t.lines()...)
	}
}
