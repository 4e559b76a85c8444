package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

// schedule is an admin.Schedule in JSON.
type schedule struct {
	Name      string `json:"name"`
	Type      string `json:"type"`
	Spec      string `json:"spec"`
	NextAt    stamp  `json:"next_at"`
	LastAt    stamp  `json:"last_at"`
	CreatedAt stamp  `json:"created_at"`
	Paused    bool   `json:"paused"`
	CatchUp   string `json:"catch_up"`
}

func newSchedule(s admin.Schedule) schedule {
	return schedule{s.Name, s.Type, s.Spec, stamp{s.NextAt}, stamp{s.LastAt}, stamp{s.CreatedAt}, s.Paused, s.CatchUp}
}

func (a *app) schedules(ctx context.Context) (found []admin.Schedule, err error) {
	err = a.read(ctx, func(ctx context.Context, c *admin.Client) error {
		found, err = c.Schedules(ctx)
		return err
	})
	return found, err
}

func (a *app) schedulesCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "schedules", Short: "list schedules; pause, resume or remove one", Args: cobra.NoArgs, Example: "  outbox schedules\n  outbox schedules pause nightly-report",
		RunE: func(c *cobra.Command, _ []string) error {
			found, err := a.schedules(c.Context())
			if err != nil {
				return err
			}
			return a.out.print(page{"schedules": mapped(found, newSchedule)}, func() error {
				t := newTable("NAME", "TYPE", "SPEC", "NEXT", "LAST", "STATE", "CATCH-UP")
				for _, s := range found {
					state := "on"
					if s.NextAt.IsZero() {
						state = "ended"
					}
					if s.Paused {
						state = "paused"
					}
					t.add(s.Name, s.Type, s.Spec, local(s.NextAt), local(s.LastAt), state, s.CatchUp)
				}
				return a.out.table(t)
			})
		},
	}
	type change func(*admin.Client, context.Context, string) error
	add := func(verb, short, long, done string, result page, do change, ask bool) {
		var yes bool
		sub := &cobra.Command{
			Use: verb + " NAME", Short: short, Long: long, Args: cobra.ExactArgs(1), Example: "  outbox schedules " + verb + " nightly-report", ValidArgsFunction: a.completeSchedules,
			RunE: func(c *cobra.Command, args []string) error {
				name, ctx := args[0], c.Context()
				found, err := a.schedules(ctx)
				if err != nil {
					return err
				}
				if !hasSchedule(found, name) {
					return notFound("there is no schedule %q; see outbox schedules", name)
				}
				if ask {
					if err := a.confirm(ctx, yes, "Remove the schedule "+name+"?"); err != nil {
						return err
					}
				}
				err = a.bounded(ctx, func(ctx context.Context) error { return do(a.client, ctx, name) })
				if errors.Is(err, admin.ErrNotFound) {
					return notFound("there is no schedule %q", name)
				}
				if err != nil {
					return err
				}
				result["name"] = name
				return a.out.print(result, func() error { return a.out.say("schedule %s: %s", name, done) })
			},
		}
		if ask {
			yesFlag(sub, &yes)
		}
		c.AddCommand(sub)
	}
	add("pause", "pass a schedule's firings over, until it is resumed", "", "paused", page{"paused": true}, (*admin.Client).PauseSchedule, false)
	add("resume", "let a schedule fire again", "Lets a schedule fire again. What was passed over is not made up for.", "resumed", page{"paused": false}, (*admin.Client).ResumeSchedule, false)
	add("remove", "remove a schedule that no relay has any more",
		"Removes a schedule. Tasks that it has enqueued stay. A relay that has it in its configuration adds it again when it starts.", "removed", page{"removed": true}, (*admin.Client).RemoveSchedule, true)
	return c
}

func hasSchedule(all []admin.Schedule, name string) bool {
	for _, s := range all {
		if s.Name == name {
			return true
		}
	}
	return false
}

func (a *app) completeSchedules(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(c.Context(), 2*time.Second)
	defer cancel()
	found, err := a.schedules(ctx)
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := []string{}
	for _, s := range found {
		if clean(s.Name) == s.Name {
			names = append(names, s.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
