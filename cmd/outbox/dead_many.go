package main

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

// mostRows is what one transaction moves or deletes.
const mostRows = 1000

// bulk is a redrive or a purge by filter: one transaction after the other, each with its entry in the audit.
type bulk struct {
	d         deadFilter
	all, yes  bool
	perSecond int

	verb string // redrive, purge
	done string // redriven, purged
	// take does one transaction's work: Client.Redrive or Client.Purge.
	take func(c *admin.Client, ctx context.Context, f admin.Filter, p admin.Page) (ids []int64, next string, err error)
}

func (b *bulk) flags(a *app, c *cobra.Command) {
	b.d.flags(a, c)
	c.Flags().BoolVar(&b.all, "all", false, "all dead letters")
	c.Flags().IntVar(&b.perSecond, "rate", 0, "so many a second at most; 0 is no limit")
	yesFlag(c, &b.yes)
}

// run counts, asks and works. What was done is printed also when it ends early.
func (a *app) bulk(ctx context.Context, b *bulk) error {
	f, words, err := b.d.filter()
	if err != nil {
		return err
	}
	if b.perSecond < 0 {
		return usage("--rate %d: must not be negative", b.perSecond)
	}
	switch {
	case words == "" && !b.all:
		return usage("which dead letters? Use --type, --error and the like, or --all")
	case words != "" && b.all:
		return usage("--all and a filter exclude each other")
	case words == "":
		words = "all"
	}
	if err := a.connect(ctx); err != nil {
		return err
	}
	// What dies from here on is not meant, nor what becomes old enough.
	until, err := a.clock(ctx)
	if err != nil {
		return err
	}
	until = until.Add(-f.OlderThan)
	if f.OlderThan = 0; f.DiedBefore.IsZero() || f.DiedBefore.After(until) {
		f.DiedBefore = until
	}
	var matched int64
	err = a.look(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		matched, _, err = a.client.In(tx).CountDeadLetters(ctx, f, admin.Page{})
		return err
	})
	if err != nil {
		return err
	}
	if matched == 0 {
		return a.bulkDone(b, 0, 0, notFound("no dead letter matches: %s", words))
	}
	question := fmt.Sprintf("%s %s (%s)?", map[string]string{"redrive": "Redrive", "purge": "Delete"}[b.verb], count(matched, "dead letter"), words)
	if err := a.confirm(ctx, b.yes, question); err != nil {
		return err
	}
	n, err := a.everyPage(ctx, b, f, matched)
	return a.bulkDone(b, matched, n, err)
}

func (a *app) bulkDone(b *bulk, matched, n int64, err error) error {
	printed := a.out.print(page{"matched": matched, b.done: n, "not_found": []int64{}}, func() error {
		if matched == 0 {
			return nil
		}
		return a.out.say("%s of %s %s", grouped(n), count(matched, "dead letter"), b.done)
	})
	if err != nil {
		return err
	}
	return printed
}

// everyPage repeats b.take until nothing is left, ctx ends or there is an error.
func (a *app) everyPage(ctx context.Context, b *bulk, f admin.Filter, matched int64) (n int64, err error) {
	p := a.progress(b.done, matched)
	defer p.end()
	return a.client.EveryPage(ctx, func(ctx context.Context, f admin.Filter, at admin.Page) (ids []int64, next string, err error) {
		err = a.bounded(ctx, func(ctx context.Context) (err error) {
			ids, next, err = b.take(a.client, ctx, f, at)
			return err
		})
		n += int64(len(ids))
		p.at(n)
		return ids, next, err
	}, f, b.perSecond)
}

func (a *app) deadRedriveCommand() *cobra.Command {
	b := &bulk{verb: "redrive", done: "redriven", take: (*admin.Client).Redrive}
	c := &cobra.Command{
		Use: "redrive [ID...]", Short: "make dead letters tasks again", ValidArgsFunction: cobra.NoFileCompletions,
		Example: "  outbox dead redrive 815 816\n  outbox dead redrive -type SEND_MAIL -error 'no such mailbox' -rate 100",
		Long: `Makes dead letters tasks again: those with the ids, or all that a filter lets through and that died before the command began, the oldest first. They
start at attempt 1 and are due at once. A filter's count is shown first, and confirmed; with --error or --reason all that the other flags let through
are read for it, and --type or --since help where they are millions. Each transaction moves up to 1,000. --timeout bounds the count and each
transaction. Ctrl-C ends it between two, or rolls the last one back, and the count that is printed is exact.`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.bulk(c.Context(), b)
			}
			if _, words, err := b.d.filter(); err != nil || words != "" || b.all {
				return usage("ids and a filter exclude each other")
			}
			return a.redriveIDs(c.Context(), args)
		},
	}
	b.flags(a, c)
	return c
}

func (a *app) redriveIDs(ctx context.Context, args []string) error {
	ids, err := taskIDs(args)
	if err != nil {
		return err
	}
	if len(ids) > mostRows {
		return usage("%d ids: at most %d at once", len(ids), mostRows)
	}
	if err := a.connect(ctx); err != nil {
		return err
	}
	var moved []int64
	err = a.bounded(ctx, func(ctx context.Context) (err error) {
		moved, _, err = a.client.Redrive(ctx, admin.Filter{IDs: ids}, admin.Page{})
		return err
	})
	if err != nil {
		return err
	}
	missing := without(ids, moved)
	err = a.out.print(page{"matched": len(moved), "redriven": len(moved), "not_found": missing}, func() error {
		if len(moved) == 0 {
			return nil
		}
		return a.out.say("%s redriven", count(int64(len(moved)), "dead letter"))
	})
	if err == nil && len(missing) > 0 {
		return notFound("no dead letter, or another transaction has it: %s", join(missing))
	}
	return err
}

func (a *app) deadPurgeCommand() *cobra.Command {
	b := &bulk{verb: "purge", done: "purged", take: (*admin.Client).Purge}
	c := &cobra.Command{
		Use: "purge", Short: "delete dead letters by a filter", Args: cobra.NoArgs, Example: "  outbox dead purge -older 720h\n  outbox dead purge -type SEND_MAIL -yes",
		Long: `Deletes the dead letters that a filter lets through and that died before the command began, the oldest first. Their count is shown first, and confirmed.
With --error or --reason all that the other flags let through are read for it, and --type or --since help where they are millions. Each
transaction deletes up to 1,000. --timeout bounds the count and each transaction. Ctrl-C ends it between two, or rolls the last one back, and the
count that is printed is exact.`,
		RunE: func(c *cobra.Command, _ []string) error { return a.bulk(c.Context(), b) },
	}
	b.flags(a, c)
	return c
}
