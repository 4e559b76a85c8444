package main

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

func (a *app) pauseCommand() *cobra.Command {
	return a.switchCommand(true, &cobra.Command{
		Use: "pause TYPE", Short: "start no tasks of a type, in all relays", Example: "  outbox pause SEND_MAIL",
		Long: "Stops all relays from starting tasks of the type, until it is resumed. Running tasks go on, " +
			"and tasks can be enqueued.",
	})
}

func (a *app) resumeCommand() *cobra.Command {
	return a.switchCommand(false, &cobra.Command{
		Use: "resume TYPE", Short: "start tasks of a paused type again", Example: "  outbox resume SEND_MAIL",
		Long: "Ends a pause. A type without a task, relay or pause is an error; a type that is not paused is none.",
	})
}

// switchCommand makes c one that pauses or resumes a type.
func (a *app) switchCommand(paused bool, c *cobra.Command) *cobra.Command {
	c.Args = cobra.ExactArgs(1)
	do, done := (*admin.Client).ResumeType, "resumed"
	if paused {
		do, done = (*admin.Client).PauseType, "paused"
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		name, known := args[0], false
		err := a.change(c.Context(), func(ctx context.Context, _ *sql.Tx, c *admin.Client) error {
			types, err := c.Types(ctx)
			if err != nil {
				return err
			}
			known = slices.ContainsFunc(types, func(t admin.Type) bool { return t.Type == name })
			err = do(c, ctx, name) // which checks the name
			if err == nil && !known && !paused {
				err = notFound("there is no task type %s: see outbox types", name) // and it is rolled back
			}
			return err
		})
		if err != nil {
			return err
		}
		if !known {
			fmt.Fprintf(a.err, "no task of type %s was ever enqueued, and no relay has a handler for it; "+
				"the pause is kept anyway\n",
				clean(name))
		}
		return a.out.print(object{{"type", name}, {"paused", paused}}, "type "+name+": "+done)
	}
	return c
}
