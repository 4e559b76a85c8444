package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

// mostRows is the most tasks that one transaction changes.
const mostRows = 1000

const states = "ready, scheduled, leased, waiting, dead, finished"

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
first; all types without --type). A scheduled task whose time has come is shown as due: a relay is to
make it ready.`,
		RunE: taskPage(a, &p, func(c *admin.Client, ctx context.Context) (admin.TaskPage, error) {
			q := admin.TaskQuery{Type: taskType, State: admin.State(state), After: p.after, Limit: p.limit}
			found, err := c.Tasks(ctx, q)
			if errors.Is(err, outbox.ErrInvalidOption) {
				err = usage("%w: use --type NAME and --state %s", err, states)
			}
			return found, err
		}, ">TASK TYPE STATE >PRIORITY >ATTEMPT >AGE DUE ERROR", func(t admin.Task) (any, []any) {
			fault := cutError(t.LastError)
			return listJSON(t), []any{
				t.ID, t.Type, taskview.State(t, time.Now()), t.Priority, t.Attempt, since(t.CreatedAt),
				t.RunAt, fault,
			}
		}),
	}
	typeFlag(c, &taskType)
	c.Flags().StringVar(&state, "state", "ready", "in this state: "+states)
	p.add(c)
	return c
}

// typeFlag adds --type.
func typeFlag(c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "type", "", "of this task type")
}

func (a *app) tasksCancelCommand() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "cancel ID...", Short: "cancel waiting and running tasks", Args: cobra.RangeArgs(1, mostRows),
		Example: "  outbox tasks cancel 815",
		Long: `Cancels tasks in one transaction. A task that waits is deleted. A task that runs is asked to end, and
is deleted unless its handler succeeds. Dead letters cannot be canceled: purge them.`,
		RunE: func(c *cobra.Command, args []string) error {
			ids, err := taskIDs(args)
			if err != nil {
				return err
			}
			question := fmt.Sprintf("Cancel %s (%s)?", count(len(ids), "task"), join(ids))
			if err := a.confirm(c.Context(), yes, question); err != nil {
				return err
			}
			return a.onTasks(c, args, "neither waiting nor running",
				func(ctx context.Context, c *admin.Client, ids []int64) ([]int64, object, []string, error) {
					results, err := c.Cancel(ctx, ids)
					canceled := having(ids, results, outbox.CancelRemoved)
					asked := having(ids, results, outbox.CancelRequested)
					o := object{{"canceled", canceled}, {"requested", asked}}
					lines := slices.Concat(each(canceled, "task %d: canceled"),
						each(asked, "task %d: running, asked to end"))
					return slices.Concat(canceled, asked), o, lines, err
				})
		},
	}
	yesFlag(c, &yes)
	return c
}

func (a *app) tasksRunNowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "run-now ID...", Short: "make scheduled tasks due at once", Args: cobra.RangeArgs(1, mostRows),
		Example: "  outbox tasks run-now 815",
		Long:    "Makes scheduled tasks due: delayed tasks, and those between two attempts.",
		RunE: func(c *cobra.Command, args []string) error {
			return a.onTasks(c, args, "not scheduled",
				func(ctx context.Context, c *admin.Client, ids []int64) ([]int64, object, []string, error) {
					results, err := c.RunNow(ctx, ids)
					due := having(ids, results, outbox.RunNowDue)
					return due, object{{"due", due}}, each(due, "task %d: due"), err
				})
		},
	}
}
