package main

import (
	"cmp"
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

// filterFlags are the flags that select tasks.
type filterFlags struct {
	of           taskview.Tasks
	filter       admin.Filter
	since, until string
}

func (d *filterFlags) add(c *cobra.Command) {
	for _, f := range taskview.FiltersOf(d.of) {
		c.Flags().Var(filterFlag{f, &d.filter}, f.Name, f.About)
	}
	since, until := "that died then or later: ", "that died before"
	switch d.of {
	case taskview.FinishedTasks:
		since, until = "that finished then or later: ", "that finished before"
	case taskview.OtherTasks:
		since, until = "enqueued, dead or finished then or later: ", "enqueued, dead or finished before"
	}
	c.Flags().StringVar(&d.since, "since", "", since+timeForms)
	c.Flags().StringVar(&d.until, "until", "", until)
}

// filterFlag is the flag of a filter.
type filterFlag struct {
	of     taskview.Filter
	filter *admin.Filter
}

func (f filterFlag) String() string { return f.of.Get(*f.filter) }
func (f filterFlag) Type() string   { return "string" }

// Set refuses a blank text, as of an unset variable of a shell: without it the command takes more tasks.
func (f filterFlag) Set(text string) error {
	if strings.TrimSpace(text) == "" {
		return errors.New("it is empty: leave the flag out")
	}
	return f.of.Set(f.filter, text)
}

// read returns the filter of the flags.
func (d *filterFlags) read() (f admin.Filter, err error) {
	f = d.filter
	if f.Since, err = parseTime("--since", d.since); err != nil {
		return f, err
	}
	f.Before, err = parseTime("--until", d.until)
	return f, err
}

// bulk is an action on the tasks with some ids, or on all that pass a filter.
type bulk struct {
	flags filterFlags
	all   bool
	how   admin.Bulk

	noun      string // dead letter, task
	ask, done string // Cancel, canceled
	running   string // what became of those that run
	missing   string // what is said of ids that are not there
	action    admin.Action
	to        func() string // what the tasks are changed to; nil: the action says it
	do        func(*admin.Client, context.Context, admin.Filter, admin.Bulk) (admin.BulkResult, error)
	read      func() error                // the flags of the action
	note      func(context.Context) error // says on stderr what follows; nil: nothing
	idsAsk    bool                        // also on ids it asks
	filters   bool                        // it takes no ids
}

const stay = "are running or locked and were not changed: repeat it for them later"

const bulkHelp = `
With a filter the command prints the number of tasks that pass it, and asks. It takes those that were
there before, up to 1,000 in a transaction. --timeout bounds the count and each transaction. Ctrl-C
ends the command between two transactions, or rolls the last one back, so the printed count is exact.`

// changed are the words of the action, and what the tasks are changed to.
func (b *bulk) changed(words string) string {
	if b.to == nil {
		return words
	}
	return words + b.to()
}

// command makes c the command of an action.
func (a *app) bulkCommand(b *bulk, c *cobra.Command) *cobra.Command {
	c.Long += "\n" + bulkHelp
	c.Args = cobra.MaximumNArgs(mostRows)
	if b.filters {
		c.Args = cobra.NoArgs
	}
	b.flags.add(c)
	if f := c.Flags().Lookup("state"); f != nil {
		f.Usage = "in this state: " + strings.Trim(fmt.Sprint(b.action.States()), "[]") + "; without it in any of these"
	}
	c.Flags().BoolVar(&b.all, "all", false, "all "+b.noun+"s")
	c.Flags().IntVar(&b.how.PerSecond, "rate", 0, "the most in a second; 0 is no limit")
	c.RunE = func(c *cobra.Command, args []string) error {
		f, err := b.flags.read()
		if err == nil && b.read != nil {
			err = b.read()
		}
		switch words := f.String(); {
		case err != nil:
			return err
		case b.how.PerSecond < 0:
			return usage("--rate %d: must not be negative", b.how.PerSecond)
		case len(args) > 0 && (words != "all" || b.all):
			return usage("ids and a filter exclude each other")
		case len(args) > 0 && b.how.PerSecond > 0 && b.flags.of == taskview.OtherTasks:
			return usage("--rate is for a filter: ids are changed in one transaction")
		case len(args) > 0:
			return a.bulkIDs(c, b, args)
		case f.State != "" && !slices.Contains(b.action.States(), f.State):
			return usage("--state %s: %s takes %q", f.State, c.Name(), b.action.States())
		case words == "all" && !b.all:
			return usage("which %ss? Use --type, --error and the like, or --all", b.noun)
		case words != "all" && b.all:
			return usage("--all and a filter exclude each other")
		}
		f.All = b.all
		return a.bulkFilter(c.Context(), b, f)
	}
	return a.asks(c)
}

// bulkIDs acts on the tasks with some ids, in one transaction.
func (a *app) bulkIDs(c *cobra.Command, b *bulk, args []string) error {
	ids, err := taskIDs(args)
	if err != nil {
		return err
	}
	if b.idsAsk {
		if err := a.confirm(c.Context(), fmt.Sprintf("%s %s (%s)?", b.ask, count(len(ids), b.noun), join(ids))); err != nil {
			return err
		}
	}
	var r admin.BulkResult
	err = a.onTasks(c, args, b.missing,
		func(ctx context.Context, c *admin.Client, ids []int64) (found []int64, _ object, lines []string, err error) {
			r, err = b.do(c, ctx, admin.Filter{IDs: ids}, admin.Bulk{WithoutKey: b.how.WithoutKey})
			if err != nil {
				return nil, nil, nil, err
			}
			found = slices.Concat(r.IDs, r.Skipped, r.Running)
			if b.flags.of == taskview.DeadLetters {
				if len(r.IDs) > 0 {
					lines = append(lines, fmt.Sprintf("%s %s", count(len(r.IDs), b.noun), b.done))
				}
				return found, object{{"matched", len(found)}, {b.done, len(r.IDs)}, {"skipped", r.Skipped}}, lines, nil
			}
			o := object{{b.done, r.IDs}, {"running", r.Running}}
			for _, id := range r.IDs {
				lines = append(lines, fmt.Sprintf("task %d: %s", id, b.changed(b.done)))
			}
			if b.done == "canceled" {
				o[1].name = "requested"
				lines = append(lines, each(r.Running, "task %d: running, asked to end")...)
			}
			if b.done == "retyped" {
				o = append(o, member{"skipped", r.Skipped})
			}
			return found, o, lines, nil
		})
	if b.note != nil && len(r.IDs) > 0 {
		err = cmp.Or(err, b.note(c.Context()))
	}
	if b.done != "canceled" && len(r.Running) > 0 {
		err = cmp.Or(err, fmt.Errorf("%s: %s", b.running, join(r.Running)))
	}
	return orSkipped(err, b.noun, r.Skipped)
}

// orSkipped is err, or that some tasks were not changed.
func orSkipped(err error, noun string, ids []int64) error {
	const most = 20
	if len(ids) == 0 {
		return err
	}
	skipped := fmt.Sprintf("%s skipped, as another task holds the unique key: %s", count(len(ids), noun),
		join(ids[:min(len(ids), most)]))
	if len(ids) > most {
		skipped += ", …"
	}
	if err != nil {
		return fmt.Errorf("%w; %s", err, skipped)
	}
	return errors.New(skipped)
}

// bulkFilter counts, asks and acts. It prints the result also if it ends early.
func (a *app) bulkFilter(ctx context.Context, b *bulk, f admin.Filter) error {
	words := taskview.Words(f)
	if err := a.connect(ctx); err != nil {
		return err
	}
	var matched int64
	err := a.look(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var now time.Time
		if err := tx.QueryRowContext(ctx, `/* outbox: clock */ SELECT clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		f = taskview.Until(f, now)
		states := []admin.State{f.State}
		if f.State == "" {
			states = b.action.States()
		}
		for _, state := range states {
			of := f
			of.State = state
			n, err := a.client.In(tx).Count(ctx, admin.TaskQuery{Filter: of})
			if err != nil {
				return err
			}
			matched += n.Count
		}
		return nil
	})
	if err != nil {
		return err
	}
	var r admin.BulkResult
	if matched == 0 {
		err = notFound("no %s matches: %s", b.noun, words)
	} else {
		question := b.changed(fmt.Sprintf("%s %s (%s)", b.ask, count(matched, b.noun), words)) + "?"
		if err := a.confirm(ctx, question); err != nil {
			return err
		}
		r, err = a.takeAll(ctx, b, f, matched)
	}
	var lines []string
	if matched > 0 {
		lines = append(lines, fmt.Sprintf("%s of %s %s", grouped(int64(len(r.IDs))), count(matched, b.noun),
			b.changed(b.done)))
	}
	if len(r.Running) > 0 {
		lines = append(lines, fmt.Sprintf("%s %s", grouped(int64(len(r.Running))), b.running))
	}
	result := object{{"matched", matched}}
	switch {
	case b.flags.of == taskview.OtherTasks:
		result = append(result, member{"type", f.Type}, member{"count", len(r.IDs)}, member{"running_count", len(r.Running)},
			member{"skipped", r.Skipped})
	case b.done == "purged":
		result = append(result, member{b.done, len(r.IDs)})
	default:
		result = append(result, member{b.done, len(r.IDs)}, member{"skipped", r.Skipped}, member{"not_found", []int64{}})
	}
	if printed := a.out.print(result, lines...); err == nil {
		err = printed
	}
	if b.note != nil && len(r.IDs) > 0 {
		err = cmp.Or(err, b.note(ctx))
	}
	return orSkipped(err, b.noun, r.Skipped)
}

// noteHandlers says if no living relay runs tasks of a type.
func (a *app) noteHandlers(ctx context.Context, taskType string) error {
	types, err := get(ctx, a, (*admin.Client).Types)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(types, func(t admin.Type) bool { return t.Type == taskType && t.Relays > 0 }) {
		fmt.Fprintf(a.err, "no living relay has a handler for the type %s\n", clean(taskType))
	}
	return nil
}

// takeAll takes all that match, and prints its progress every other second.
func (a *app) takeAll(ctx context.Context, b *bulk, f admin.Filter, matched int64) (admin.BulkResult, error) {
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

func (a *app) deadRedriveCommand() *cobra.Command {
	b := &bulk{flags: filterFlags{of: taskview.DeadLetters}, noun: "dead letter", ask: "Redrive", done: "redriven",
		missing: "no dead letter, or another transaction has it", action: admin.ActionRedrive,
		do: (*admin.Client).Redrive}
	c := a.bulkCommand(b, &cobra.Command{
		Use: "redrive [ID...]", Short: "make dead letters tasks again",
		Example: "  outbox dead redrive 815 816\n  outbox dead redrive -type SEND_MAIL -error 'no such mailbox' -rate 100",
		Long: `Makes dead letters tasks again, the oldest first: those with the ids, or all that pass a filter and
died before the command began. They start at attempt 1 and are due at once. If another task holds
the unique key of a dead letter, that is skipped, and the exit code is 1.`,
	})
	c.Flags().BoolVar(&b.how.WithoutKey, "without-key", false,
		"redrive also if another task holds the unique key: the task runs without its key")
	return c
}

func (a *app) deadPurgeCommand() *cobra.Command {
	return a.bulkCommand(&bulk{flags: filterFlags{of: taskview.DeadLetters}, noun: "dead letter", ask: "Delete",
		done: "purged", action: admin.ActionPurge, do: (*admin.Client).Purge, filters: true}, &cobra.Command{
		Use: "purge", Short: "delete dead letters by a filter",
		Example: "  outbox dead purge -older 720h\n  outbox dead purge -type SEND_MAIL -yes",
		Long:    `Deletes the dead letters that pass a filter and died before the command began, the oldest first.`,
	})
}

func (a *app) historyPurgeCommand() *cobra.Command {
	return a.bulkCommand(&bulk{flags: filterFlags{of: taskview.FinishedTasks}, noun: "finished task", ask: "Delete",
		done: "purged", action: admin.ActionPurgeFinished, do: (*admin.Client).PurgeFinished, filters: true},
		&cobra.Command{
			Use: "purge", Short: "delete finished tasks by a filter",
			Example: "  outbox history purge -type SEND_MAIL -older 720h\n  outbox history purge -payload '{\"user_id\": 7}'",
			Long: `Deletes the finished tasks that pass a filter and finished before the command began, with their results.
Those enqueued first go first. Counts stay. It needs the rights of a worker or of the outbox's owner.`,
		})
}

func (a *app) tasksCancelCommand() *cobra.Command {
	return a.bulkCommand(&bulk{flags: filterFlags{of: taskview.OtherTasks}, noun: "task", ask: "Cancel", done: "canceled",
		running: "running, asked to end", missing: "neither waiting nor running", action: admin.ActionCancel,
		do: (*admin.Client).Cancel, idsAsk: true}, &cobra.Command{
		Use: "cancel [ID...]", Short: "cancel waiting and running tasks",
		Example: "  outbox tasks cancel 815\n  outbox tasks cancel -type SEND_MAIL -payload '{\"user_id\": 7}'",
		Long: `Cancels the tasks with the ids, or all that pass a filter. A task that waits is deleted. A task that
runs is asked to end, and is deleted unless its handler succeeds. Dead letters cannot be canceled: purge
them.`,
	})
}

func (a *app) tasksRunNowCommand() *cobra.Command {
	return a.bulkCommand(&bulk{flags: filterFlags{of: taskview.OtherTasks}, noun: "task", ask: "Run at once", done: "due",
		running: stay, missing: "not scheduled", action: admin.ActionRunNow,
		do: (*admin.Client).RunNow}, &cobra.Command{
		Use: "run-now [ID...]", Short: "make scheduled tasks due at once",
		Example: "  outbox tasks run-now 815\n  outbox tasks run-now -type SEND_MAIL -state retrying",
		Long: `Makes scheduled tasks due: delayed tasks, and those between two attempts. With --state retrying it
takes the latter alone.`,
	})
}

func (a *app) tasksRescheduleCommand() *cobra.Command {
	var at string
	var after time.Duration
	var due time.Time
	b := &bulk{flags: filterFlags{of: taskview.OtherTasks}, noun: "task", ask: "Reschedule", done: "rescheduled",
		running: stay, missing: "neither waiting nor running", action: admin.ActionReschedule,
		read: func() (err error) {
			if due, err = parseTime("--at", at); err != nil {
				return err
			}
			if due.IsZero() == (after == 0) || after < 0 {
				return usage("say when: --at TIME, or --after 2h")
			}
			if due.IsZero() {
				due = time.Now().Add(after)
			}
			return nil
		},
		to: func() string { return " to " + due.UTC().Format(time.DateTime) + " UTC" },
		do: func(c *admin.Client, ctx context.Context, f admin.Filter, o admin.Bulk) (admin.BulkResult, error) {
			return c.Reschedule(ctx, f, due, o)
		}}
	c := a.bulkCommand(b, &cobra.Command{
		Use: "reschedule [ID...]", Short: "make waiting tasks due at another time",
		Example: "  outbox tasks reschedule 815 -at '2026-05-01 06:00'\n  outbox tasks reschedule -type SEND_MAIL -after 2h",
		Long: `Makes waiting tasks due at a time, or after a time from now. Their attempts stay. A task that waits for
another of its ordering key waits on, and is due then at the earliest.`,
	})
	c.Flags().StringVar(&at, "at", "", "at this time: "+timeForms)
	c.Flags().DurationVar(&after, "after", 0, "after this time from now, like 90s or 2h")
	return c
}

func (a *app) tasksPriorityCommand() *cobra.Command {
	var to int
	var c *cobra.Command
	c = a.bulkCommand(&bulk{flags: filterFlags{of: taskview.OtherTasks}, noun: "task", ask: "Change the priority of",
		done: "changed", running: stay, to: func() string { return fmt.Sprint(" to priority ", to) },
		missing: "neither waiting nor running", action: admin.ActionSetPriority,
		read: func() error {
			if !c.Flags().Changed("to") {
				return usage("say the priority: --to 10")
			}
			return nil
		},
		do: func(c *admin.Client, ctx context.Context, f admin.Filter, o admin.Bulk) (admin.BulkResult, error) {
			return c.SetPriority(ctx, f, to, o)
		}}, &cobra.Command{
		Use: "set-priority [ID...]", Short: "change the priority of waiting tasks",
		Example: "  outbox tasks set-priority 815 -to -10\n  outbox tasks set-priority -type SEND_MAIL -older 1h -to 100",
		Long: `Changes the priority of waiting tasks: lower runs first, 0 is normal. It orders the tasks of one type.
Dead letters keep theirs.`,
	})
	c.Flags().IntVar(&to, "to", 0, "the priority, -32768 to 32767")
	return c
}

func (a *app) tasksRetypeCommand() *cobra.Command {
	var to string
	b := &bulk{flags: filterFlags{of: taskview.OtherTasks}, noun: "task", ask: "Change the type of", done: "retyped",
		running: stay, missing: "neither waiting nor running, or of the type", action: admin.ActionRetype,
		to:   func() string { return " to " + to },
		note: func(ctx context.Context) error { return a.noteHandlers(ctx, to) },
		read: func() error {
			if to == "" {
				return usage("say the new type: --to NAME")
			}
			return nil
		},
		do: func(c *admin.Client, ctx context.Context, f admin.Filter, o admin.Bulk) (admin.BulkResult, error) {
			return c.Retype(ctx, f, to, o)
		}}
	c := a.bulkCommand(b, &cobra.Command{
		Use: "retype [ID...]", Short: "give waiting tasks another type, as after a rename",
		Example: "  outbox tasks retype -type SEND_MAIL -to SEND_EMAIL",
		Long: `Gives waiting tasks another type. If another task of that type holds the unique key of a task, the task
is skipped, and the exit code is 1. Tasks with an ordering or group key wait for their turn among those
of their key in the new type. Dead letters keep their type: redrive them before.`,
	})
	c.Flags().StringVar(&to, "to", "", "the new type")
	return c
}

func (a *app) tasksSetPayloadCommand() *cobra.Command {
	return a.asks(&cobra.Command{
		Use: "set-payload ID JSON", Short: "replace the payload of a waiting task or dead letter", Args: cobra.ExactArgs(2),
		Example: "  outbox tasks set-payload 815 '{\"user_id\": 7}'\n  outbox tasks set-payload 815 - < payload.json",
		Long: `Replaces the whole payload of a task that waits, or of a dead letter before it is redriven; - reads it from
stdin. A task that runs stays as it is. See the present one by outbox tasks show ID -payload. The audit
log says that it was replaced, without the payload. A unique key that was made of the payload stays.`,
		RunE: func(c *cobra.Command, args []string) error {
			id, err := taskID(args[0])
			if err != nil {
				return err
			}
			payload, err := a.payload(args[1])
			if err != nil {
				return err
			}
			if err := a.confirm(c.Context(), fmt.Sprintf("Replace the payload of task %d?", id)); err != nil {
				return err
			}
			err = a.act(c.Context(), func(ctx context.Context, c *admin.Client) error {
				return c.SetPayload(ctx, id, payload)
			})
			if errors.Is(err, admin.ErrNotFound) {
				return a.notThere(c.Context(), args[0])
			}
			if err != nil {
				return err
			}
			return a.out.print(object{{"task_id", id}, {"payload", "replaced"}}, fmt.Sprintf("task %d: payload replaced", id))
		},
	})
}
