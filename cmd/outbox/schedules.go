package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

func (a *app) schedulesCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "schedules", Short: "list schedules; pause, resume or remove one", Args: cobra.NoArgs,
		Example: "  outbox schedules\n  outbox schedules pause nightly-report",
		RunE: list(a, "schedules", (*admin.Client).Schedules, "NAME TYPE SPEC NEXT LAST STATE CATCH-UP",
			func(s admin.Schedule) (any, []any) {
				state := "on"
				if s.NextAt.IsZero() {
					state = "ended"
				}
				if s.Paused {
					state = "paused"
				}
				return s, []any{s.Name, s.Type, s.Spec, s.NextAt, s.LastAt, state, s.CatchUp}
			}),
	}
	var yes bool
	do := (*admin.Client).RemoveSchedule
	remove := a.scheduleCommand(do, "removed", member{"removed", true}, &yes, &cobra.Command{
		Use: "remove NAME", Short: "remove a schedule that no relay has", Example: "  outbox schedules remove nightly-report",
		Long: `Removes a schedule. The tasks that it has enqueued stay. A relay that has it in its configuration
adds it again when it starts.`,
	})
	yesFlag(remove, &yes)
	do = (*admin.Client).PauseSchedule
	c.AddCommand(remove, a.scheduleCommand(do, "paused", member{"paused", true}, nil, &cobra.Command{
		Use: "pause NAME", Short: "skip a schedule's firings, until it is resumed",
		Example: "  outbox schedules pause nightly-report",
	}), a.scheduleCommand((*admin.Client).ResumeSchedule, "resumed", member{"paused", false}, nil, &cobra.Command{
		Use: "resume NAME", Short: "let a schedule fire again", Example: "  outbox schedules resume nightly-report",
		Long: "Lets a schedule fire again. Skipped firings are not made up for.",
	}))
	return c
}

// scheduleCommand makes c an action on a schedule, after a question if yes is not nil.
func (a *app) scheduleCommand(
	do func(*admin.Client, context.Context, string) error, done string, result member, yes *bool, c *cobra.Command,
) *cobra.Command {
	c.Args = cobra.ExactArgs(1)
	c.RunE = func(c *cobra.Command, args []string) error {
		name := args[0]
		if err := a.confirm(c.Context(), yes == nil || *yes, "Remove the schedule "+name+"?"); err != nil {
			return err
		}
		err := a.act(c.Context(), func(ctx context.Context, c *admin.Client) error { return do(c, ctx, name) })
		if errors.Is(err, admin.ErrNotFound) {
			return notFound("there is no schedule %q; see outbox schedules", name)
		}
		if err != nil {
			return err
		}
		return a.out.print(object{result, {"name", name}}, "schedule "+name+": "+done)
	}
	return c
}
