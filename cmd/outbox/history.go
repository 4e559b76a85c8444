package main

import (
	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

func (a *app) historyCommand() *cobra.Command {
	c := group(&cobra.Command{
		Use: "history", Short: "finished tasks of the types that keep them: list, show",
		Example: "  outbox history list -type SEND_MAIL",
	})
	c.AddCommand(a.historyListCommand(), a.showCommand(admin.Finished, &cobra.Command{
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
		RunE: func(c *cobra.Command, _ []string) error {
			found, next, err := a.listTasks(c, p, taskType, admin.Finished)
			if err != nil {
				return err
			}
			t := newTable(">TASK", "TYPE", ">ATTEMPT", ">FINISHED", ">TOOK", "OUTCOME")
			for _, k := range found {
				took := ""
				if !k.AttemptedAt.IsZero() {
					took = age(k.EndedAt.Sub(k.AttemptedAt))
				}
				t.add(listJSON(k, admin.Finished), k.TaskID, k.Type, k.Attempt, since(k.EndedAt), took,
					cutError(taskview.Outcome(k)))
			}
			return a.printPage("tasks", t, next)
		},
	}
	a.typeFlag(c, &taskType)
	p.add(c)
	return c
}
