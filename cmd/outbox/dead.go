package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

func (a *app) deadCommand() *cobra.Command {
	var d deadFilter
	var f admin.DeadFilter
	list := taskList(a, &cobra.Command{
		Short:   "list dead letters, the latest first",
		Example: "  outbox dead list -error 'no such mailbox' -older 24h",
		PreRunE: func(*cobra.Command, []string) (err error) {
			f, err = d.read()
			return err
		},
	}, func(ctx context.Context, c *admin.Client, p pageFlags) (admin.TaskPage, error) {
		return c.DeadLetters(ctx, admin.DeadQuery{Filter: f, After: p.after, Limit: p.limit})
	}, ">TASK TYPE REASON >ATTEMPTS >DIED ERROR", func(t admin.Task) []any {
		attempts := fmt.Sprintf("%d/%d", t.Attempt, t.MaxAttempts)
		return []any{t.ID, t.Type, t.Reason, attempts, since(t.EndedAt), cutError(t.LastError)}
	})
	d.add(list)
	return group(&cobra.Command{
		Use: "dead", Short: "dead letters: list, show, redrive, purge",
		Example: "  outbox dead list -type SEND_MAIL",
	}, list, a.showCommand(admin.StateDead, &cobra.Command{
		Short: "show a dead letter and why it died", Example: "  outbox dead show 815 -payload",
	}), a.deadRedriveCommand(), a.deadPurgeCommand())
}

// deadFilter are the flags that select dead letters.
type deadFilter struct {
	filter       admin.DeadFilter
	since, until string
}

func (d *deadFilter) add(c *cobra.Command) {
	for _, f := range taskview.Filters {
		c.Flags().Var(filterFlag{f, &d.filter}, f.Name, f.About)
	}
	c.Flags().StringVar(&d.since, "since", "", "that died then or later: "+timeForms)
	c.Flags().StringVar(&d.until, "until", "", "that died before")
}

// filterFlag is the flag of a filter.
type filterFlag struct {
	of     taskview.Filter
	filter *admin.DeadFilter
}

func (f filterFlag) String() string        { return f.of.Get(*f.filter) }
func (f filterFlag) Set(text string) error { return f.of.Set(f.filter, text) }
func (f filterFlag) Type() string          { return "string" }

// read returns the filter of the flags.
func (d *deadFilter) read() (f admin.DeadFilter, err error) {
	f = d.filter
	if f.DiedAfter, err = parseTime("--since", d.since); err != nil {
		return f, err
	}
	f.DiedBefore, err = parseTime("--until", d.until)
	return f, err
}

func (a *app) deadRedriveCommand() *cobra.Command {
	b := &bulk{ask: "Redrive", done: "redriven", do: (*admin.Client).Redrive}
	c := &cobra.Command{
		Use: "redrive [ID...]", Short: "make dead letters tasks again",
		Args:    cobra.MaximumNArgs(mostRows),
		Example: "  outbox dead redrive 815 816\n  outbox dead redrive -type SEND_MAIL -error 'no such mailbox' -rate 100",
		Long: `Makes dead letters tasks again, the oldest first: those with the ids, or all that pass a filter and
died before the command began. They start at attempt 1 and are due at once. If another task holds
the unique key of a dead letter, that is skipped, and the exit code is 1.
` + bulkHelp,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.bulk(c.Context(), b)
			}
			if f, err := b.read(); err != nil || f.String() != "all" || b.all {
				return usage("ids and a filter exclude each other")
			}
			var r admin.BulkResult
			err := a.onTasks(c, args, "no dead letter, or another transaction has it",
				func(ctx context.Context, c *admin.Client, ids []int64) (found []int64, _ object, lines []string, err error) {
					r, err = c.Redrive(ctx, admin.DeadFilter{IDs: ids}, admin.Bulk{WithoutKey: b.how.WithoutKey})
					if len(r.IDs) > 0 {
						lines = append(lines, count(len(r.IDs), "dead letter")+" redriven")
					}
					found = slices.Concat(r.IDs, r.Skipped)
					return found, object{{"matched", len(found)}, {"redriven", len(r.IDs)}, {"skipped", r.Skipped}}, lines, err
				})
			return orSkipped(err, r.Skipped)
		},
	}
	b.add(a, c)
	c.Flags().BoolVar(&b.how.WithoutKey, "without-key", false,
		"redrive also if another task holds the unique key: the task runs without its key")
	return c
}

// orSkipped is err, or that some dead letters were not redriven.
func orSkipped(err error, ids []int64) error {
	const most = 20
	if len(ids) == 0 {
		return err
	}
	skipped := fmt.Sprintf("%s skipped, as another task holds the unique key: %s", count(len(ids), "dead letter"),
		join(ids[:min(len(ids), most)]))
	if len(ids) > most {
		skipped += ", …"
	}
	if err != nil {
		return fmt.Errorf("%w; %s", err, skipped)
	}
	return errors.New(skipped)
}

func (a *app) deadPurgeCommand() *cobra.Command {
	b := &bulk{ask: "Delete", done: "purged", do: (*admin.Client).Purge}
	c := &cobra.Command{
		Use: "purge", Short: "delete dead letters by a filter", Args: cobra.NoArgs,
		Example: "  outbox dead purge -older 720h\n  outbox dead purge -type SEND_MAIL -yes",
		Long: `Deletes the dead letters that pass a filter and died before the command began, the oldest first.
` + bulkHelp,
		RunE: func(c *cobra.Command, _ []string) error { return a.bulk(c.Context(), b) },
	}
	b.add(a, c)
	return c
}

var bulkHelp = `
The command prints the filter's count, and asks. With ` + searches() + ` it reads all dead letters
that pass the other flags: if there are millions, use --type or --since. Each transaction takes up to
1,000. --timeout bounds the count and each transaction. Ctrl-C ends the command between two
transactions, or rolls the last one back, so the printed count is exact.`

// searches names the flags of filters that no index has.
func searches() string {
	var names []string
	for _, f := range taskview.Filters {
		if !f.Indexed {
			names = append(names, "--"+f.Name)
		}
	}
	return strings.Join(names, " or ")
}

// bulk is a redrive or a purge by filter.
type bulk struct {
	deadFilter
	all bool
	how admin.Bulk

	ask, done string // Delete, purged
	do        func(*admin.Client, context.Context, admin.DeadFilter, admin.Bulk) (admin.BulkResult, error)
}

func (b *bulk) add(a *app, c *cobra.Command) {
	b.deadFilter.add(c)
	c.Flags().BoolVar(&b.all, "all", false, "all dead letters")
	c.Flags().IntVar(&b.how.PerSecond, "rate", 0, "the most in a second; 0 is no limit")
	a.asks(c)
}

// bulk counts, asks and acts. It prints the result also if it ends early.
func (a *app) bulk(ctx context.Context, b *bulk) error {
	f, err := b.read()
	if err != nil {
		return err
	}
	if b.how.PerSecond < 0 {
		return usage("--rate %d: must not be negative", b.how.PerSecond)
	}
	words := f.String()
	if words == "all" && !b.all {
		return usage("which dead letters? Use --type, --error and the like, or --all")
	}
	if words != "all" && b.all {
		return usage("--all and a filter exclude each other")
	}
	if err := a.connect(ctx); err != nil {
		return err
	}
	var found admin.DeadCount
	err = a.look(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		var now time.Time
		if err := tx.QueryRowContext(ctx, `/* outbox: clock */ SELECT clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		f = taskview.Until(f, now)
		found, err = a.client.In(tx).CountDeadLetters(ctx, admin.DeadQuery{Filter: f})
		return err
	})
	if err != nil {
		return err
	}
	matched := found.Count
	var r admin.BulkResult
	if matched == 0 {
		err = notFound("no dead letter matches: %s", words)
	} else {
		question := fmt.Sprintf("%s %s (%s)?", b.ask, count(matched, "dead letter"), words)
		if err := a.confirm(ctx, question); err != nil {
			return err
		}
		r, err = a.takeAll(ctx, b, f, matched)
	}
	result := object{{"matched", matched}, {b.done, len(r.IDs)}}
	if b.done == "redriven" {
		result = append(result, member{"skipped", r.Skipped}, member{"not_found", []int64{}})
	}
	var lines []string
	if matched > 0 {
		lines = append(lines, fmt.Sprintf("%s of %s %s", grouped(int64(len(r.IDs))), count(matched, "dead letter"), b.done))
	}
	if printed := a.out.print(result, lines...); err == nil {
		err = printed
	}
	return orSkipped(err, r.Skipped)
}

// takeAll takes all that match, and prints its progress every other second.
func (a *app) takeAll(ctx context.Context, b *bulk, f admin.DeadFilter, matched int64) (admin.BulkResult, error) {
	said := time.Now()
	b.how.Timeout = max(a.timeout, 0)
	b.how.Progress = func(r admin.BulkResult) bool {
		if time.Since(said) > 2*time.Second {
			fmt.Fprintf(a.err, "%s of %s %s\n", grouped(int64(len(r.IDs))), grouped(matched), b.done)
			said = time.Now()
		}
		return true
	}
	r, err := b.do(a.client, ctx, f, b.how)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = errTimeout
	}
	return r, err
}
