package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

func (a *app) adoptCommand() *cobra.Command {
	var o admin.AdoptOptions
	var yes bool
	c := &cobra.Command{
		Use: "adopt", Short: "let relays run in this database, which may be a copy", Args: cobra.NoArgs,
		Example: "  outbox adopt -keep-id\n  outbox adopt\n  outbox adopt -environment staging -discard",
		Long: `Relays run nothing in a copy of the database, such as a restored dump, until it is adopted. The
command names the original, counts the waiting tasks, and asks. Then relays begin within seconds.

--keep-id is for production that was moved, by a dump or by logical replication: this database succeeds
the original, and the keys of its tasks stay the same. Stop the original's relays before.

Without it this is a copy: tasks get other keys than in the original. Relays run the tasks that came
along. With --discard the command first deletes them all, with the dead letters and the schedules
that are not paused, so staging sends nothing of production's. Nothing brings them back.

A snapshot or a clone looks like its original: adopt it with --environment, the
relay.Config.Environment of its relays.`,
		RunE: func(c *cobra.Command, _ []string) error {
			question, err := a.askAdopt(c.Context(), o)
			if err != nil {
				return err
			}
			if err := a.confirm(c.Context(), yes, question); err != nil {
				return err
			}
			var done admin.AdoptResult
			err = a.bounded(c.Context(), func(ctx context.Context) (err error) {
				done, err = a.client.Adopt(ctx, o)
				return err
			})
			if err != nil {
				return err
			}
			lines := []string{"adopted: this is the database " + done.DatabaseID}
			if o.Discard {
				lines = append(lines, fmt.Sprintf("%s, %s and %s discarded",
					count(done.Tasks, "task"), count(done.DeadLetters, "dead letter"), count(done.Schedules, "schedule")))
			} else if done.Leases > 0 {
				lines = append(lines, count(done.Leases, "task")+" of the original's relays ready again")
			}
			return a.out.print(done, lines...)
		},
	}
	c.Flags().BoolVar(&o.Discard, "discard", false,
		"delete the tasks and dead letters of the original, and the schedules that are not paused")
	c.Flags().BoolVar(&o.KeepID, "keep-id", false, "this database succeeds the original, with the same task keys")
	c.Flags().StringVar(&o.Environment, "environment", "",
		"write this environment into the database: the relay.Config.Environment of its relays")
	yesFlag(c, &yes)
	return c
}

// askAdopt connects, and returns the question, with the original and the waiting tasks.
func (a *app) askAdopt(ctx context.Context, o admin.AdoptOptions) (question string, err error) {
	var of admin.Origin
	var sum admin.Type
	err = a.read(ctx, func(ctx context.Context, c *admin.Client) error {
		if of, err = c.Origin(ctx); err != nil {
			return err
		}
		types, err := c.Types(ctx)
		sum = taskview.Sum(types)
		return err
	})
	if err != nil {
		return "", err
	}
	state := of.Problem
	if state == "" {
		environment := ""
		if of.Environment != "" {
			environment = fmt.Sprintf(" of the environment %q", of.Environment)
		}
		state = fmt.Sprintf("this database is %q%s, and not known to be a copy", of.Name, environment)
	}
	waiting := count(sum.Ready+sum.Scheduled+sum.Leased+sum.Waiting, "task")
	letters := count(sum.Dead, "dead letter")
	do := fmt.Sprintf("Take it over, with %s to run", waiting)
	switch {
	case o.KeepID:
		do = fmt.Sprintf("Continue the original here, with %s to run", waiting)
	case o.Discard:
		do = fmt.Sprintf("DELETE its %s and %s, and take it over", waiting, letters)
	}
	return strings.ToUpper(state[:1]) + state[1:] + ". " + do + "?", nil
}
