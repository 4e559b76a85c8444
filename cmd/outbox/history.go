package main

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

func (a *app) historyCommand() *cobra.Command {
	c := group(&cobra.Command{
		Use: "history", Short: "finished tasks of the types that keep them: list, show",
		Example: "  outbox history list -type SEND_MAIL",
	})
	c.AddCommand(a.historyListCommand(), a.showCommand(admin.StateFinished, &cobra.Command{
		Short: "show a finished task", Example: "  outbox history show 815",
	}))
	return c
}

func (a *app) historyListCommand() *cobra.Command {
	var taskType string
	var p pageFlags
	c := &cobra.Command{
		Use: "list", Short: "list finished tasks, those enqueued last first", Args: cobra.NoArgs,
		Example: "  outbox history list -type SEND_MAIL -limit 10",
		Long: `Lists the finished tasks of the types whose handlers keep them. OUTCOME is done, or the reason why
the handler discarded the task.`,
		RunE: taskPage(a, &p, func(c *admin.Client, ctx context.Context) (admin.TaskPage, error) {
			return c.Tasks(ctx, admin.TaskQuery{Type: taskType, State: admin.StateFinished, After: p.after, Limit: p.limit})
		}, ">TASK TYPE >ATTEMPT >FINISHED >TOOK OUTCOME", func(t admin.Task) (any, []any) {
			took := ""
			if !t.AttemptedAt.IsZero() {
				took = age(t.EndedAt.Sub(t.AttemptedAt))
			}
			outcome := cutError(taskview.Outcome(t))
			return listJSON(t), []any{t.ID, t.Type, t.Attempt, since(t.EndedAt), took, outcome}
		}),
	}
	typeFlag(c, &taskType)
	p.add(c)
	return c
}
