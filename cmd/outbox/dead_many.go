package main

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/audit"
	"github.com/txoutbox/outbox/deadletter"
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
	// page does one transaction's work: deadletter.RedrivePage or PurgePage.
	page func(ctx context.Context, q outbox.Querier, f deadletter.Filter, after deadletter.Cursor, limit int, opts ...deadletter.Option) (deadletter.Page, error)
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
	err = a.look(ctx, func(ctx context.Context, q *sql.Tx) (err error) {
		matched, err = deadletter.Count(ctx, q, f, deadletter.Schema(a.schema))
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
	n, err := a.pages(ctx, b, f, words, matched)
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

// pages repeats b.page until nothing is left, ctx ends or there is an error.
func (a *app) pages(ctx context.Context, b *bulk, f deadletter.Filter, words string, matched int64) (n int64, err error) {
	size := mostRows
	if b.perSecond > 0 {
		size = min(b.perSecond, mostRows)
	}
	p := a.progress(b.done, matched)
	defer p.end()
	start := time.Now()
	for at := (deadletter.Page{}); ; {
		err := a.change(ctx, func(ctx context.Context, tx *sql.Tx) (e audit.Entry, err error) {
			at, err = b.page(ctx, tx, f, at.Next, size, deadletter.Schema(a.schema))
			return counted(b.verb, "dead letters: "+words, at.Count), err
		})
		if err != nil {
			return n, err
		}
		n += at.Count
		p.at(n)
		if at.Last {
			return n, nil
		}
		if b.perSecond > 0 {
			pause := time.NewTimer(time.Until(start.Add(time.Duration(float64(n) / float64(b.perSecond) * float64(time.Second)))))
			select {
			case <-pause.C:
			case <-ctx.Done():
				pause.Stop()
			}
		}
		if ctx.Err() != nil {
			return n, ctx.Err()
		}
	}
}

func (a *app) deadRedriveCommand() *cobra.Command {
	b := &bulk{verb: "redrive", done: "redriven", page: deadletter.RedrivePage}
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
	err = a.changes(ctx, func(ctx context.Context, tx *sql.Tx) (_ []audit.Entry, err error) {
		moved, err = deadletter.Redrive(ctx, tx, ids, deadletter.Schema(a.schema))
		return entriesOf("redrive", moved), err
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
	b := &bulk{verb: "purge", done: "purged", page: deadletter.PurgePage}
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
