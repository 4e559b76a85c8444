package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
)

// maxInput bounds the payload from stdin: the most that outbox.MaxPayload allows.
const maxInput = 16 << 20

type enqueueFlags struct {
	priority, attempts  int
	at, unique, ordered string
	after               time.Duration
	headers             []string
}

func (a *app) enqueueCommand() *cobra.Command {
	var f enqueueFlags
	c := &cobra.Command{
		Use: "enqueue TYPE JSON", Short: "enqueue a task", Args: cobra.ExactArgs(2),
		Example: "  outbox enqueue SEND_MAIL '{\"user_id\": 7}' -after 10m -unique user-7\n" +
			"  generate | outbox enqueue REPORT -",
		Long: `Enqueues a task with the JSON as its payload; - reads it from stdin. The task waits until a relay has
a handler for its type. It needs the rights of a worker: an enqueuer cannot write the audit log, and
an operator enqueues by plain INSERT only.`,
		RunE: func(c *cobra.Command, args []string) error {
			task, err := a.newTask(c, args[0], args[1], f)
			if err != nil {
				return err
			}
			var done outbox.Enqueued
			err = a.change(c.Context(), func(ctx context.Context, tx *sql.Tx, c *admin.Client) (err error) {
				done, err = outbox.Enqueue(ctx, tx, task.Type, task.Payload, task.Options...)
				if err != nil || done.Outcome == outbox.OutcomeSkipped {
					return err
				}
				target := fmt.Sprintf("task %d of type %s", done.ID, task.Type)
				_, err = c.WriteAudit(ctx, admin.AuditEntry{Action: admin.ActionEnqueue, Target: target, Count: 1})
				return err
			})
			if err != nil {
				return err
			}
			return a.out.print(object{{"task_id", done.ID}, {"outcome", string(done.Outcome)}},
				fmt.Sprintf("task %d: %s", done.ID, done.Outcome))
		},
	}
	c.Flags().IntVar(&f.priority, "priority", 0, "lower runs first")
	c.Flags().StringVar(&f.at, "at", "", "due at this time: "+timeForms)
	c.Flags().DurationVar(&f.after, "after", 0, "due after this time, like 90s or 2h")
	c.Flags().IntVar(&f.attempts, "attempts", 0, "the most attempts; 0: those of its handler")
	c.Flags().StringVar(&f.unique, "unique", "",
		"key: no second task with it is enqueued; a task that waits stays as it is")
	c.Flags().StringVar(&f.ordered, "ordered", "", "key: its tasks run one after the other")
	c.Flags().StringArrayVar(&f.headers, "header", nil, "NAME=VALUE, beside the payload; may be repeated")
	return c
}

// newTask is the task of the arguments, if they are valid.
func (a *app) newTask(c *cobra.Command, taskType, text string, f enqueueFlags) (task outbox.TaskSpec, err error) {
	payload := []byte(text)
	if text == "-" {
		if payload, err = io.ReadAll(io.LimitReader(a.in, maxInput+1)); err != nil {
			return task, fmt.Errorf("read the payload: %w", err)
		}
	}
	opts := []outbox.Option{
		outbox.Schema(a.schema), outbox.Priority(f.priority), outbox.After(f.after), outbox.MaxAttempts(f.attempts),
	}
	at, err := parseTime("--at", f.at)
	if err != nil {
		return task, err
	}
	if !at.IsZero() && f.after != 0 {
		return task, usage("--at and --after exclude each other")
	}
	if !at.IsZero() {
		opts = append(opts, outbox.RunAt(at))
	}
	if c.Flags().Changed("unique") {
		opts = append(opts, outbox.Unique(f.unique))
	}
	if c.Flags().Changed("ordered") {
		opts = append(opts, outbox.OrderedBy(f.ordered))
	}
	headers := map[string]string{}
	for _, h := range f.headers {
		name, value, found := strings.Cut(h, "=")
		if !found || name == "" {
			return task, usage("--header takes NAME=VALUE")
		}
		headers[name] = value
	}
	task = outbox.TaskSpec{Type: taskType, Payload: json.RawMessage(payload),
		Options: append(opts, outbox.Headers(headers))}
	if _, err := task.Encode(); err != nil {
		return task, usage("%w", err)
	}
	return task, nil
}

const timeForms = "2026-05-01, 2026-05-01 15:04 or with :05 in the local zone, or RFC 3339"

// parseTime reads the time of a flag.
func parseTime(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, form := range []string{time.RFC3339, time.DateOnly, "2006-01-02 15:04", time.DateTime} {
		if t, err := time.ParseInLocation(form, text, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usage("%s %q: write %s", flag, text, timeForms)
}
