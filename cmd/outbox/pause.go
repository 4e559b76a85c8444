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
	return &cobra.Command{
		Use: "pause TYPE", Short: "start no tasks of a type, in all relays", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeTypes, Example: "  outbox pause SEND_MAIL",
		Long: "Keeps all relays from starting tasks of the type, until it is resumed. What runs goes on, and tasks can be enqueued.",
		RunE: func(c *cobra.Command, args []string) error { return a.setPaused(c.Context(), args[0], true) },
	}
}

func (a *app) resumeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "resume TYPE", Short: "start tasks of a paused type again", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeTypes, Example: "  outbox resume SEND_MAIL",
		Long: "Ends a pause. A type that no task, relay or pause has is refused; one that is not paused stays as it is.",
		RunE: func(c *cobra.Command, args []string) error { return a.setPaused(c.Context(), args[0], false) },
	}
}

func (a *app) setPaused(ctx context.Context, taskType string, paused bool) error {
	if err := a.connect(ctx); err != nil {
		return err
	}
	do, action := (*admin.Client).ResumeType, "resume"
	if paused {
		do, action = (*admin.Client).PauseType, "pause"
	}
	known := false
	err := a.change(ctx, func(ctx context.Context, _ *sql.Tx, c *admin.Client) error {
		types, err := c.Types(ctx)
		if err != nil {
			return err
		}
		known = slices.ContainsFunc(types, func(t admin.Type) bool { return t.Type == taskType })
		err = do(c, ctx, taskType) // which checks the name
		if err == nil && !known && !paused {
			err = notFound("there is no task type %s: see outbox types", taskType) // and it is rolled back
		}
		return err
	})
	if err != nil {
		return err
	}
	if !known {
		fmt.Fprintf(a.err, "no task of type %s was ever enqueued, and no relay has a handler for it; the pause is kept for it all the same\n", clean(taskType))
	}
	return a.out.print(page{"type": taskType, "paused": paused}, func() error {
		return a.out.say("type %s: %sd", taskType, action)
	})
}
