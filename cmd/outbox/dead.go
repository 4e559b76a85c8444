package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

func (a *app) deadCommand() *cobra.Command {
	d := filterFlags{of: taskview.DeadLetters}
	var f admin.Filter
	list := taskList(a, &cobra.Command{
		Short:   "list dead letters, the latest first",
		Example: "  outbox dead list -error 'no such mailbox' -older 24h",
		PreRunE: func(*cobra.Command, []string) (err error) {
			f, err = d.read()
			f.State = admin.StateDead
			return err
		},
	}, func(ctx context.Context, c *admin.Client, p pageFlags) (admin.TaskPage, error) {
		return c.Tasks(ctx, admin.TaskQuery{Filter: f, After: p.after, Limit: p.limit})
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
