package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

// showCommand makes c one that shows a task: in any state, or in the one that its group is about.
func (a *app) showCommand(only admin.State, c *cobra.Command) *cobra.Command {
	var payload bool
	c.Use, c.Args, c.ValidArgsFunction = "show ID|KEY", cobra.ExactArgs(1), cobra.NoFileCompletions
	c.RunE = func(c *cobra.Command, args []string) error {
		find, err := finder(args[0])
		if err != nil {
			return err
		}
		var t admin.Task
		var hidden admin.Secrets
		err = a.read(c.Context(), func(ctx context.Context, c *admin.Client) (err error) {
			if t, err = find(ctx, c); err == nil && payload {
				hidden, err = c.Secrets(ctx, t.TaskID)
			}
			return err
		})
		if errors.Is(err, admin.ErrNotFound) {
			return notFound("task %s is nowhere: it is finished, was canceled, or never was", args[0])
		}
		if err != nil {
			return err
		}
		if only != "" && t.State != only {
			return notFound("task %d is %s, not %s: see outbox tasks show %d", t.TaskID, t.State, only, t.TaskID)
		}
		o, f := append(toJSON[only](t), member{"timeline", timelineJSON(t.Timeline)}), taskFields(t)
		if only == "" {
			o = append(o, member{"runs", runsJSON(t.Runs)})
		}
		if payload {
			o = append(o, object{
				{"payload", hidden.Payload}, {"headers", hidden.Headers},
				{"unique_key", hidden.UniqueKey}, {"ordering_key", hidden.OrderingKey},
			}...)
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
	c.Flags().BoolVar(shown, "payload", false, "show payload, headers and keys as well")
}

// indented is a JSON text for people.
func indented(text json.RawMessage) string {
	if out, err := json.MarshalIndent(text, "", "  "); err == nil && len(text) > 60 {
		return string(out)
	}
	return string(text)
}

// toJSON is how each group of commands has a task in JSON.
var toJSON = map[admin.State]func(admin.Task) object{"": taskJSON, admin.Dead: letterJSON, admin.Finished: finishedJSON}

func taskJSON(t admin.Task) object {
	return object{
		{"task_id", t.TaskID}, {"key", t.Key}, {"type", t.Type}, {"state", t.State}, {"priority", t.Priority},
		{"attempt", t.Attempt}, {"max_attempts", t.MaxAttempts},
		{"created_at", t.CreatedAt}, {"run_at", t.RunAt}, {"attempted_at", t.AttemptedAt}, {"ended_at", t.EndedAt},
		{"reason", t.Reason}, {"last_error", t.LastError}, {"timeout_seconds", t.Timeout}, {"iterations", t.Iterations},
		{"leased_until", t.LeasedUntil}, {"relay_id", t.RelayID},
	}
}

func letterJSON(t admin.Task) object {
	return object{
		{"task_id", t.TaskID}, {"key", t.Key}, {"type", t.Type}, {"reason", t.Reason}, {"error", t.LastError},
		{"attempt", t.Attempt}, {"max_attempts", t.MaxAttempts}, {"priority", t.Priority},
		{"created_at", t.CreatedAt}, {"run_at", t.RunAt}, {"attempted_at", t.AttemptedAt}, {"died_at", t.EndedAt},
	}
}

func finishedJSON(t admin.Task) object {
	return object{
		{"task_id", t.TaskID}, {"key", t.Key}, {"type", t.Type}, {"error", t.LastError}, {"attempt", t.Attempt}, {"priority", t.Priority},
		{"created_at", t.CreatedAt}, {"run_at", t.RunAt}, {"attempted_at", t.AttemptedAt},
		{"finished_at", t.EndedAt}, {"keep_until", t.KeepUntil},
	}
}

func timelineJSON(events []admin.Event) []object {
	out := []object{}
	for _, e := range events {
		out = append(out, object{
			{"event", e.Kind}, {"attempt", e.Attempt}, {"at", e.At}, {"relay_id", e.RelayID}, {"duration_seconds", e.Duration},
			{"error", e.Error}, {"reason", e.Reason}, {"actor", e.Actor}, {"times", e.Times}, {"last_at", e.LastAt},
		})
	}
	return out
}

// eventLine is an event for people.
func eventLine(e admin.Event) string {
	line := when(e.At) + "  "
	if e.Attempt > 0 {
		line += fmt.Sprintf("attempt %d ", e.Attempt)
	}
	line += string(e.Kind)
	if e.Times > 1 {
		line += fmt.Sprintf(" %d times until %s", e.Times, when(e.LastAt))
	}
	if e.Duration > 0 {
		line += fmt.Sprintf(" after %.3fs", e.Duration.Seconds())
	}
	if e.Actor != "" {
		line += " by " + e.Actor
	}
	if e.Reason != "" {
		line += ", dead letter (" + e.Reason + ")"
	}
	if e.Error != "" {
		line += ": " + e.Error
	}
	return line
}

func runsJSON(runs []admin.Run) []object {
	out := []object{}
	for _, r := range runs {
		out = append(out, object{
			{"task_ids", r.TaskIDs}, {"type", r.Type}, {"relay_id", r.RelayID}, {"started_at", r.StartedAt}, {"lost", r.Lost},
		})
	}
	return out
}

// taskFields are a task for people.
func taskFields(t admin.Task) (f fields) {
	f.add("task", t.TaskID)
	f.add("key", t.Key)
	f.add("type", t.Type)
	f.add("state", t.State)
	ended := "died"
	switch t.State {
	case admin.Dead:
		f.add("reason", t.Reason+": "+admin.Reasons()[t.Reason])
	case admin.Finished:
		ended = "finished"
		f.add("outcome", outcome(t.LastError))
	}
	f.add("priority", t.Priority)
	attempts := fmt.Sprint(t.Attempt)
	if t.MaxAttempts > 0 {
		attempts += fmt.Sprintf(" of %d", t.MaxAttempts)
	}
	f.add("attempts", attempts)
	if t.Iterations > 0 {
		f.add("iterations", t.Iterations)
	}
	f.add("timeout", t.Timeout)
	f.add("created", when(t.CreatedAt))
	f.add("due", when(t.RunAt))
	f.add("last attempt", when(t.AttemptedAt))
	f.add(ended, when(t.EndedAt))
	f.add("kept until", when(t.KeepUntil))
	f.add("leased until", when(t.LeasedUntil))
	f.add("relay", t.RelayID)
	for _, r := range t.Runs {
		run := "since " + since(r.StartedAt) + " in relay " + r.RelayID
		if len(r.TaskIDs) > 1 {
			run += ", in a batch of " + grouped(len(r.TaskIDs))
		}
		if r.Lost {
			run += ", lost"
		}
		f.add("run", run)
	}
	if t.State != admin.Finished {
		f.add("error", t.LastError)
	}
	lines := make([]string, len(t.Timeline))
	for i, e := range t.Timeline {
		lines[i] = eventLine(e)
	}
	f.add("timeline", strings.Join(lines, "\n"))
	return f
}

// outcome is how a task finished: done, or why it was discarded.
func outcome(discarded string) string {
	if discarded == "" {
		return "done"
	}
	return "discarded: " + strings.TrimPrefix(discarded, "discard: ")
}
