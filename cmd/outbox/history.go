package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

func (a *app) historyCommand() *cobra.Command {
	c := group(&cobra.Command{Use: "history", Short: "finished tasks of the types that keep them: list, show", Example: "  outbox history list -type SEND_MAIL"})
	c.AddCommand(a.historyListCommand(), a.historyShowCommand())
	return c
}

// finished is a finished task in JSON.
type finished struct {
	TaskID      int64  `json:"task_id"`
	Type        string `json:"type"`
	Error       string `json:"error"`
	Attempt     int    `json:"attempt"`
	Priority    int    `json:"priority"`
	CreatedAt   stamp  `json:"created_at"`
	RunAt       stamp  `json:"run_at"`
	AttemptedAt stamp  `json:"attempted_at"`
	FinishedAt  stamp  `json:"finished_at"`
	KeepUntil   stamp  `json:"keep_until"`
	*secrets
}

func newFinished(t admin.Task) finished {
	return finished{t.TaskID, t.Type, t.LastError, t.Attempt, t.Priority, stamp{t.CreatedAt}, stamp{t.RunAt}, stamp{t.AttemptedAt}, stamp{t.EndedAt}, stamp{t.KeepUntil}, nil}
}

func (a *app) historyListCommand() *cobra.Command {
	var taskType string
	var p pageFlags
	c := &cobra.Command{
		Use: "list", Short: "list finished tasks, those enqueued last first", Args: cobra.NoArgs, Example: "  outbox history list -type SEND_MAIL -limit 10",
		Long: "Lists the finished tasks of the types whose handlers keep them. OUTCOME is done, or what a discarded task was discarded for.",
		RunE: func(c *cobra.Command, _ []string) error {
			found, next, err := a.listTasks(c, &p, taskType, admin.Finished)
			if err != nil {
				return err
			}
			return a.out.print(page{"tasks": mapped(found, newFinished), "next": orNull(next)}, func() error {
				t := newTable(">TASK", "TYPE", ">ATTEMPT", ">FINISHED", ">TOOK", "OUTCOME")
				for _, f := range found {
					took := ""
					if !f.AttemptedAt.IsZero() {
						took = age(f.EndedAt.Sub(f.AttemptedAt))
					}
					t.add(f.TaskID, f.Type, f.Attempt, a.out.since(f.EndedAt), took, cutError(outcome(f.LastError)))
				}
				return errors.Join(a.out.table(t), a.more(next))
			})
		},
	}
	a.typeFlag(c, &taskType)
	p.add(c)
	return c
}

func outcome(discarded string) string {
	if discarded == "" {
		return "done"
	}
	return "discarded: " + strings.TrimPrefix(discarded, "discard: ")
}

func (a *app) historyShowCommand() *cobra.Command {
	var shown bool
	c := &cobra.Command{
		Use: "show ID", Short: "show a finished task", Args: cobra.ExactArgs(1), Example: "  outbox history show 815", ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			id, err := taskID(args[0])
			if err != nil {
				return err
			}
			var found finished
			err = a.read(c.Context(), func(ctx context.Context, c *admin.Client) error {
				t, err := c.Task(ctx, id)
				if errors.Is(err, admin.ErrNotFound) || err == nil && t.State != admin.Finished {
					return notFound("task %d is not in the history: it is not finished, its type keeps none, or its time is over", id)
				}
				if err != nil {
					return err
				}
				found = newFinished(t)
				found.secrets, err = secretsOf(ctx, c, id, shown)
				return err
			})
			if err != nil {
				return err
			}
			return a.out.print(found, func() error {
				var f fields
				f.add("task", found.TaskID)
				f.add("type", found.Type)
				f.add("outcome", outcome(found.Error))
				f.add("attempt", fmt.Sprint(found.Attempt))
				f.add("priority", found.Priority)
				f.add("created", a.out.when(found.CreatedAt.Time))
				f.add("due", a.out.when(found.RunAt.Time))
				f.add("last attempt", a.out.when(found.AttemptedAt.Time))
				f.add("finished", a.out.when(found.FinishedAt.Time))
				f.add("kept until", a.out.when(found.KeepUntil.Time))
				found.secrets.fields(&f)
				return a.out.fields(f)
			})
		},
	}
	payloadFlag(c, &shown)
	return c
}
