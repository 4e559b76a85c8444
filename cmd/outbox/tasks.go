package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
)

// mostRows is the most tasks that one transaction changes.
const mostRows = 1000

var states = []string{"ready", "scheduled", "leased", "waiting", "dead", "finished"}

func (a *app) tasksCommand() *cobra.Command {
	c := group(&cobra.Command{
		Use: "tasks", Short: "tasks: list, show, cancel, run-now",
		Example: "  outbox tasks list -type SEND_MAIL -state scheduled",
	})
	c.AddCommand(a.tasksListCommand(), a.showCommand("", &cobra.Command{
		Short: "show a task in any state", Example: "  outbox tasks show 815",
		Long: "Shows a task: it waits or runs, or is a dead letter, or is finished and of a type that keeps its tasks.",
	}), a.tasksCancelCommand(), a.tasksRunNowCommand())
	return c
}

func (a *app) tasksListCommand() *cobra.Command {
	var taskType, state string
	var p pageFlags
	c := &cobra.Command{
		Use: "list", Short: "list tasks of a type in a state", Args: cobra.NoArgs,
		Example: "  outbox tasks list -type SEND_MAIL -state scheduled",
		Long: `Lists tasks of one type in one state: ready (in the order of claiming), scheduled (by due time,
retries included), leased, waiting (for another of their ordering key), dead or finished (the latest
first; all types without --type).`,
		RunE: func(c *cobra.Command, _ []string) error {
			found, next, err := a.listTasks(c, p, taskType, admin.State(state))
			if errors.Is(err, outbox.ErrInvalidOption) {
				return usage("%w: use --type NAME and --state %s", err, strings.Join(states, ", "))
			}
			if err != nil {
				return err
			}
			t := newTable(">TASK", "TYPE", "STATE", ">PRIORITY", ">ATTEMPT", ">AGE", "DUE", "ERROR")
			for _, k := range found {
				t.add(listJSON(k, ""), k.TaskID, k.Type, k.State, k.Priority, k.Attempt, since(k.CreatedAt), k.RunAt,
					cutError(k.LastError))
			}
			return a.printPage("tasks", t, next)
		},
	}
	a.typeFlag(c, &taskType)
	choiceFlag(c, &state, "state", "ready", "in this state: "+strings.Join(states, ", "), states)
	p.add(c)
	return c
}

func (a *app) listTasks(c *cobra.Command, p pageFlags, taskType string, state admin.State) ([]admin.Task, string, error) {
	return listed(c, a, p, func(c *admin.Client, ctx context.Context, p admin.Page) ([]admin.Task, string, error) {
		return c.Tasks(ctx, taskType, state, p)
	})
}

func (a *app) tasksCancelCommand() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "cancel ID...", Short: "cancel waiting and running tasks", Args: cobra.RangeArgs(1, mostRows),
		Example: "  outbox tasks cancel 815", ValidArgsFunction: cobra.NoFileCompletions,
		Long: `Cancels tasks in one transaction. A task that waits is deleted. A task that runs is asked to end, and
is deleted unless its handler succeeds. Dead letters cannot be canceled: purge them.`,
		RunE: func(c *cobra.Command, args []string) error {
			ids, err := taskIDs(args)
			if err != nil {
				return err
			}
			if err := a.confirm(c.Context(), yes, fmt.Sprintf("Cancel %s (%s)?", count(len(ids), "task"), join(ids))); err != nil {
				return err
			}
			return a.onTasks(c, args, "neither waiting nor running",
				func(ctx context.Context, c *admin.Client, ids []int64) ([]int64, object, []string, error) {
					canceled, requested, err := c.Cancel(ctx, ids...)
					lines := append(each(canceled, "task %d: canceled"), each(requested, "task %d: running, asked to end")...)
					return slices.Concat(canceled, requested), object{{"canceled", canceled}, {"requested", requested}}, lines, err
				})
		},
	}
	yesFlag(c, &yes)
	return c
}

func (a *app) tasksRunNowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "run-now ID...", Short: "make scheduled tasks due at once", Args: cobra.RangeArgs(1, mostRows),
		Example: "  outbox tasks run-now 815", ValidArgsFunction: cobra.NoFileCompletions,
		Long: "Makes scheduled tasks due: delayed tasks, and those between two attempts.",
		RunE: func(c *cobra.Command, args []string) error {
			return a.onTasks(c, args, "not scheduled",
				func(ctx context.Context, c *admin.Client, ids []int64) ([]int64, object, []string, error) {
					due, err := c.RunNow(ctx, ids...)
					return due, object{{"due", due}}, each(due, "task %d: due"), err
				})
		},
	}
}
