package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

func (a *app) deadCommand() *cobra.Command {
	c := group(&cobra.Command{Use: "dead", Short: "dead letters: list, show, redrive, purge", Example: "  outbox dead list -type SEND_MAIL"})
	c.AddCommand(a.deadListCommand(), a.deadShowCommand(), a.deadRedriveCommand(), a.deadPurgeCommand())
	return c
}

// letter is a dead letter in JSON.
type letter struct {
	TaskID      int64  `json:"task_id"`
	Type        string `json:"type"`
	Reason      string `json:"reason"`
	Error       string `json:"error"`
	Attempt     int    `json:"attempt"`
	MaxAttempts int    `json:"max_attempts"`
	Priority    int    `json:"priority"`
	CreatedAt   stamp  `json:"created_at"`
	RunAt       stamp  `json:"run_at"`
	AttemptedAt stamp  `json:"attempted_at"`
	DiedAt      stamp  `json:"died_at"`
	*secrets
}

func (a *app) deadListCommand() *cobra.Command {
	var d deadFilter
	var p pageFlags
	c := &cobra.Command{
		Use: "list", Short: "list dead letters, the latest first", Args: cobra.NoArgs, Example: "  outbox dead list -error 'no such mailbox' -older 24h",
		RunE: func(c *cobra.Command, _ []string) error {
			f, _, err := d.filter()
			if err != nil {
				return err
			}
			found, next, err := listed(c, a, &p, func(c *admin.Client, ctx context.Context, p admin.Page) ([]admin.Task, string, error) {
				return c.DeadLetters(ctx, f, p)
			})
			if err != nil {
				return err
			}
			return a.out.print(page{"letters": mapped(found, newLetter), "next": orNull(next)}, func() error {
				t := newTable(">TASK", "TYPE", "REASON", ">ATTEMPTS", ">DIED", "ERROR")
				for _, l := range found {
					t.add(l.TaskID, l.Type, l.Reason, fmt.Sprintf("%d/%d", l.Attempt, l.MaxAttempts), a.out.since(l.EndedAt), cutError(l.LastError))
				}
				return errors.Join(a.out.table(t), a.more(next))
			})
		},
	}
	d.flags(a, c)
	p.add(c)
	return c
}

func newLetter(t admin.Task) letter {
	return letter{t.TaskID, t.Type, t.Reason, t.LastError, t.Attempt, t.MaxAttempts, t.Priority,
		stamp{t.CreatedAt}, stamp{t.RunAt}, stamp{t.AttemptedAt}, stamp{t.EndedAt}, nil}
}

func (a *app) deadShowCommand() *cobra.Command {
	var shown bool
	c := &cobra.Command{
		Use: "show ID", Short: "show a dead letter and why it died", Args: cobra.ExactArgs(1), Example: "  outbox dead show 815 -payload", ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			id, err := taskID(args[0])
			if err != nil {
				return err
			}
			var found letter
			err = a.read(c.Context(), func(ctx context.Context, c *admin.Client) error {
				t, err := c.Task(ctx, id)
				if errors.Is(err, admin.ErrNotFound) {
					return notFound("task %d is no dead letter, and nowhere else", id)
				}
				if err == nil && t.State != admin.Dead {
					return notFound("task %d is no dead letter: it is %s; see outbox tasks show %d", id, t.State, id)
				}
				if err != nil {
					return err
				}
				found = newLetter(t)
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
				f.add("reason", found.Reason+": "+reasons[found.Reason])
				f.add("attempts", fmt.Sprintf("%d of %d", found.Attempt, found.MaxAttempts))
				f.add("priority", found.Priority)
				f.add("created", a.out.when(found.CreatedAt.Time))
				f.add("due", a.out.when(found.RunAt.Time))
				f.add("last attempt", a.out.when(found.AttemptedAt.Time))
				f.add("died", a.out.when(found.DiedAt.Time))
				f.add("error", found.Error)
				found.secrets.fields(&f)
				return a.out.fields(f)
			})
		},
	}
	payloadFlag(c, &shown)
	return c
}

var reasons = map[string]string{
	admin.ReasonAttempts:        "all attempts were used",
	admin.ReasonHandler:         "its handler gave it up",
	admin.ReasonLostConnections: "too many runs lost their connection to PostgreSQL",
	admin.ReasonCommitted:       "its handler committed the claim's transaction and then failed",
}
