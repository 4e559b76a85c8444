package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

// showCommand makes c a command that shows a task in any state, or in that of its group.
func (a *app) showCommand(only admin.State, c *cobra.Command) *cobra.Command {
	var payload bool
	c.Use, c.Args = "show ID|KEY", cobra.ExactArgs(1)
	c.RunE = func(c *cobra.Command, args []string) error {
		find, err := finder(args[0])
		if err != nil {
			return err
		}
		var t admin.Task
		var hidden admin.Payload
		err = a.read(c.Context(), func(ctx context.Context, c *admin.Client) (err error) {
			if t, err = find(ctx, c); err == nil && payload {
				hidden, err = c.Payload(ctx, t.ID)
			}
			return err
		})
		if errors.Is(err, admin.ErrNotFound) {
			return notFound("task %s is not there: it has finished, was canceled, or never was", args[0])
		}
		if err != nil {
			return err
		}
		if only != "" && t.State != only {
			return notFound("task %d is %s, not %s: see outbox tasks show %d", t.ID, t.State, only, t.ID)
		}
		o, f := objectOf(t), taskFields(t)
		if payload {
			o = append(o, objectOf(hidden)...)
			f.add("unique key", hidden.UniqueKey)
			f.add("ordering key", hidden.OrderingKey)
			f.add("headers", indented(hidden.Headers))
			f.add("payload", indented(hidden.Payload))
		}
		return a.out.print(o, f.lines()...)
	}
	payloadFlag(c, &payload)
	return c
}

// finder finds a task by its id or its key.
func finder(text string) (func(context.Context, *admin.Client) (admin.Task, error), error) {
	if strings.Contains(text, "-") {
		return func(ctx context.Context, c *admin.Client) (admin.Task, error) { return c.TaskByKey(ctx, text) }, nil
	}
	id, err := taskID(text)
	return func(ctx context.Context, c *admin.Client) (admin.Task, error) { return c.Task(ctx, id) }, err
}

func payloadFlag(c *cobra.Command, shown *bool) {
	c.Flags().BoolVar(shown, "payload", false, "show payload, headers and keys too")
}

// indented is a JSON text for people.
func indented(text json.RawMessage) string {
	if out, err := json.MarshalIndent(text, "", "  "); err == nil && len(text) > 60 {
		return string(out)
	}
	return string(text)
}

// listJSON is a task in a list, where nothing reads its runs and its timeline.
func listJSON(t admin.Task) object { return objectOf(t).without("runs", "timeline") }

// taskFields are a task for people.
func taskFields(t admin.Task) (f fields) {
	f.add("task", t.ID)
	f.add("state", taskview.State(t, time.Now()))
	for _, fact := range taskview.Facts(t) {
		value := fact.Value
		if at, ok := value.(time.Time); ok {
			value = when(at)
		}
		f.add(fact.Name, value)
	}
	if t.State != admin.StateFinished {
		f.add("error", t.LastError)
	}
	var lines []string
	for _, e := range taskview.Timeline(t) {
		line := when(e.At) + "  " + e.Text
		if e.Error != "" {
			line += ": " + e.Error
		}
		lines = append(lines, line)
	}
	f.add("timeline", strings.Join(lines, "\n"))
	return f
}
