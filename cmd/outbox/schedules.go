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
		RunE: func(c *cobra.Command, _ []string) error {
			found, err := get(c.Context(), a, (*admin.Client).Schedules)
			if err != nil {
				return err
			}
			t := newTable("NAME", "TYPE", "SPEC", "NEXT", "LAST", "STATE", "CATCH-UP")
			for _, s := range found {
				state := "on"
				if s.NextAt.IsZero() {
					state = "ended"
				}
				if s.Paused {
					state = "paused"
				}
				t.add(s, s.Name, s.Type, s.Spec, s.NextAt, s.LastAt, state, s.CatchUp)
			}
			return a.out.print(object{{"schedules", t.json}}, t.lines()...)
		},
	}
	var yes bool
	remove := a.scheduleCommand((*admin.Client).RemoveSchedule, "removed", member{"removed", true}, &yes, &cobra.Command{
		Use: "remove NAME", Short: "remove a schedule that no relay has", Example: "  outbox schedules remove nightly-report",
		Long: `Removes a schedule. The tasks that it has enqueued stay. A relay that has it in its configuration
adds it again when it starts.`,
	})
	yesFlag(remove, &yes)
	c.AddCommand(remove, a.scheduleCommand((*admin.Client).PauseSchedule, "paused", member{"paused", true}, nil, &cobra.Command{
		Use: "pause NAME", Short: "skip a schedule's firings, until it is resumed", Example: "  outbox schedules pause nightly-report",
	}), a.scheduleCommand((*admin.Client).ResumeSchedule, "resumed", member{"paused", false}, nil, &cobra.Command{
		Use: "resume NAME", Short: "let a schedule fire again", Example: "  outbox schedules resume nightly-report",
		Long: "Lets a schedule fire again. Skipped firings are not made up for.",
	}))
	return c
}

// scheduleCommand makes c an action on a schedule, after a question if yes is not nil.
func (a *app) scheduleCommand(do func(*admin.Client, context.Context, string) error, done string, result member, yes *bool,
	c *cobra.Command) *cobra.Command {
	c.Args = cobra.ExactArgs(1)
	c.ValidArgsFunction = offer(a, (*admin.Client).Schedules, func(s admin.Schedule) string { return s.Name })
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
