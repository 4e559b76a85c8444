package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
)

func (a *app) tasksCommand() *cobra.Command {
	c := group(&cobra.Command{Use: "tasks", Short: "tasks: list, show, cancel, run-now", Example: "  outbox tasks list -type SEND_MAIL -state scheduled"})
	c.AddCommand(a.tasksListCommand(), a.tasksShowCommand(), a.tasksCancelCommand(), a.tasksRunNowCommand())
	return c
}

// task is an admin.Task in JSON.
type task struct {
	TaskID      int64   `json:"task_id"`
	Type        string  `json:"type"`
	State       string  `json:"state"`
	Priority    int     `json:"priority"`
	Attempt     int     `json:"attempt"`
	MaxAttempts int     `json:"max_attempts"`
	CreatedAt   stamp   `json:"created_at"`
	RunAt       stamp   `json:"run_at"`
	AttemptedAt stamp   `json:"attempted_at"`
	EndedAt     stamp   `json:"ended_at"`
	Reason      string  `json:"reason"`
	LastError   string  `json:"last_error"`
	Timeout     float64 `json:"timeout_seconds"`
	Iterations  int     `json:"iterations"`
	LeasedUntil stamp   `json:"leased_until"`
	RelayID     string  `json:"relay_id"`
}

func newTask(t admin.Task) task {
	return task{t.TaskID, t.Type, string(t.State), t.Priority, t.Attempt, t.MaxAttempts, stamp{t.CreatedAt}, stamp{t.RunAt}, stamp{t.AttemptedAt}, stamp{t.EndedAt},
		t.Reason, t.LastError, seconds(t.Timeout), t.Iterations, stamp{t.LeasedUntil}, t.RelayID}
}

// run is an admin.Run in JSON.
type run struct {
	TaskIDs   []int64 `json:"task_ids"`
	Type      string  `json:"type"`
	RelayID   string  `json:"relay_id"`
	StartedAt stamp   `json:"started_at"`
	Lost      bool    `json:"lost"`
}

func newRun(r admin.Run) run {
	return run{list(r.TaskIDs), r.Type, r.RelayID, stamp{r.StartedAt}, r.Lost}
}

var states = []string{"ready", "scheduled", "leased", "waiting", "dead", "finished"}

func (a *app) tasksListCommand() *cobra.Command {
	var taskType, state string
	var p pageFlags
	c := &cobra.Command{
		Use: "list", Short: "list tasks of a type in a state", Args: cobra.NoArgs, Example: "  outbox tasks list -type SEND_MAIL -state scheduled",
		Long: `Lists tasks of one type in one state: ready (in the order of claiming), scheduled (by due time, retries included), leased, waiting (for another of their
ordering key), dead or finished (the latest first; all types without --type).`,
		RunE: func(c *cobra.Command, _ []string) error {
			found, next, err := a.listTasks(c, &p, taskType, admin.State(state))
			if errors.Is(err, outbox.ErrInvalidOption) {
				return usage("%w: use --type NAME and --state %s", err, strings.Join(states, ", "))
			}
			if err != nil {
				return err
			}
			return a.out.print(page{"tasks": mapped(found, newTask), "next": orNull(next)}, func() error {
				t := newTable(">TASK", "TYPE", "STATE", ">PRIORITY", ">ATTEMPT", ">AGE", "DUE", "ERROR")
				for _, k := range found {
					t.add(k.TaskID, k.Type, k.State, k.Priority, k.Attempt, a.out.since(k.CreatedAt), local(k.RunAt), cutError(k.LastError))
				}
				return errors.Join(a.out.table(t), a.more(next))
			})
		},
	}
	a.typeFlag(c, &taskType)
	c.Flags().StringVar(&state, "state", "ready", "in this state: "+strings.Join(states, ", "))
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp))
	p.add(c)
	return c
}

func (a *app) listTasks(c *cobra.Command, p *pageFlags, taskType string, state admin.State) ([]admin.Task, string, error) {
	return listed(c, a, p, func(c *admin.Client, ctx context.Context, p admin.Page) ([]admin.Task, string, error) {
		return c.Tasks(ctx, taskType, state, p)
	})
}

func (a *app) tasksShowCommand() *cobra.Command {
	var shown bool
	c := &cobra.Command{
		Use: "show ID", Short: "show a task wherever it is", Args: cobra.ExactArgs(1), Example: "  outbox tasks show 815", ValidArgsFunction: cobra.NoFileCompletions,
		Long: "Shows a task: one that is to do or runs, a dead letter, or a finished one of a type that keeps them.",
		RunE: func(c *cobra.Command, args []string) error {
			id, err := taskID(args[0])
			if err != nil {
				return err
			}
			var found admin.Task
			var hidden *secrets
			err = a.read(c.Context(), func(ctx context.Context, c *admin.Client) (err error) {
				found, err = c.Task(ctx, id)
				if errors.Is(err, admin.ErrNotFound) {
					return notFound("task %d is nowhere: it is finished, was canceled, or never was", id)
				}
				if err == nil {
					hidden, err = secretsOf(ctx, c, id, shown)
				}
				return err
			})
			if err != nil {
				return err
			}
			v := struct {
				task
				Runs []run `json:"runs"`
				*secrets
			}{newTask(found), mapped(found.Runs, newRun), hidden}
			return a.out.print(v, func() error { return a.showTask(found, hidden) })
		},
	}
	payloadFlag(c, &shown)
	return c
}

func (a *app) showTask(t admin.Task, s *secrets) error {
	var f fields
	f.add("task", t.TaskID)
	f.add("type", t.Type)
	f.add("state", t.State)
	f.add("priority", t.Priority)
	if t.MaxAttempts > 0 {
		f.add("attempts", fmt.Sprintf("%d of %d", t.Attempt, t.MaxAttempts))
	} else {
		f.add("attempts", t.Attempt)
	}
	if t.Iterations > 0 {
		f.add("iterations", t.Iterations)
	}
	if t.Timeout > 0 {
		f.add("timeout", t.Timeout)
	}
	f.add("created", a.out.when(t.CreatedAt))
	f.add("due", a.out.when(t.RunAt))
	f.add("last attempt", a.out.when(t.AttemptedAt))
	f.add("ended", a.out.when(t.EndedAt))
	f.add("reason", t.Reason)
	f.add("leased until", a.out.when(t.LeasedUntil))
	f.add("relay", t.RelayID)
	for _, r := range t.Runs {
		f.add("run", a.runText(r))
	}
	f.add("error", t.LastError)
	s.fields(&f)
	return a.out.fields(f)
}

func (a *app) runText(r admin.Run) string {
	text := "since " + a.out.since(r.StartedAt) + " in relay " + r.RelayID
	if len(r.TaskIDs) > 1 {
		text += ", in a batch of " + grouped(int64(len(r.TaskIDs)))
	}
	if r.Lost {
		text += ", lost"
	}
	return text
}

func (a *app) tasksCancelCommand() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "cancel ID...", Short: "take tasks back, waiting or running", Args: cobra.RangeArgs(1, mostRows), Example: "  outbox tasks cancel 815", ValidArgsFunction: cobra.NoFileCompletions,
		Long: `Cancels tasks in one transaction. One that waits is deleted. One that runs is asked to end, and is gone unless its handler succeeds all the same.
Dead letters are not canceled but purged.`,
		RunE: func(c *cobra.Command, args []string) error {
			ids, err := taskIDs(args)
			if err != nil {
				return err
			}
			if err := a.connect(c.Context()); err != nil {
				return err
			}
			if err := a.confirm(c.Context(), yes, fmt.Sprintf("Cancel %s (%s)?", count(int64(len(ids)), "task"), join(ids))); err != nil {
				return err
			}
			var canceled, requested []int64
			err = a.bounded(c.Context(), func(ctx context.Context) (err error) {
				canceled, requested, err = a.client.Cancel(ctx, ids...)
				return err
			})
			if err != nil {
				return err
			}
			missing := without(ids, append(append([]int64{}, canceled...), requested...))
			err = a.out.print(page{"canceled": list(canceled), "requested": list(requested), "not_found": missing}, func() error {
				for _, id := range canceled {
					_ = a.out.say("task %d: canceled", id)
				}
				for _, id := range requested {
					_ = a.out.say("task %d: it runs, and was asked to end", id)
				}
				return nil
			})
			if err == nil && len(missing) > 0 {
				return notFound("neither waiting nor running: %s", join(missing))
			}
			return err
		},
	}
	yesFlag(c, &yes)
	return c
}

func (a *app) tasksRunNowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "run-now ID...", Short: "make scheduled tasks due at once", Args: cobra.RangeArgs(1, mostRows), Example: "  outbox tasks run-now 815", ValidArgsFunction: cobra.NoFileCompletions,
		Long: "Makes tasks due that are scheduled: delayed, or between two attempts.",
		RunE: func(c *cobra.Command, args []string) error {
			ids, err := taskIDs(args)
			if err != nil {
				return err
			}
			if err := a.connect(c.Context()); err != nil {
				return err
			}
			var due []int64
			err = a.bounded(c.Context(), func(ctx context.Context) (err error) {
				due, err = a.client.RunNow(ctx, ids...)
				return err
			})
			if err != nil {
				return err
			}
			missing := without(ids, due)
			err = a.out.print(page{"due": list(due), "not_found": missing}, func() error {
				for _, id := range due {
					_ = a.out.say("task %d: due", id)
				}
				return nil
			})
			if err == nil && len(missing) > 0 {
				return notFound("not scheduled: %s", join(missing))
			}
			return err
		},
	}
}
