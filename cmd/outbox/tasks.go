package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

// mostRows is the most tasks that one transaction changes.
const mostRows = 1000

func (a *app) tasksCommand() *cobra.Command {
	d := filterFlags{of: taskview.OtherTasks}
	var f admin.Filter
	list := taskList(a, &cobra.Command{
		Short: "list tasks: the newest, or those that pass a filter",
		Example: "  outbox tasks list\n  outbox tasks list -type SEND_MAIL -state retrying\n" +
			"  outbox tasks list -error 'timed out'",
		Long: `Lists tasks, the newest first, in any state. Those of one type and state are listed in the order of the
state: ready (in the order of claiming), scheduled (by due time), retrying (likewise, after a failed
attempt), leased, waiting (for another of their ordering or group key), dead or finished (the latest
first). A scheduled or retrying task whose time has come is shown as due: a relay is to make it ready.`,
		PreRunE: func(*cobra.Command, []string) (err error) {
			f, err = d.read()
			return err
		},
	}, func(ctx context.Context, c *admin.Client, p pageFlags) (admin.TaskPage, error) {
		found, err := c.Tasks(ctx, admin.TaskQuery{Filter: f, After: p.after, Limit: p.limit})
		if errors.Is(err, outbox.ErrInvalidOption) {
			err = usage("%w", err)
		}
		return found, err
	}, ">TASK TYPE STATE >PRIORITY >ATTEMPT >AGE DUE ERROR", func(t admin.Task) []any {
		return []any{t.ID, t.Type, taskview.State(t, time.Now()), t.Priority, t.Attempt,
			since(t.CreatedAt), t.RunAt, cutError(t.LastError)}
	})
	d.add(list)
	return group(&cobra.Command{
		Use: "tasks", Short: "tasks: list, count, show, cancel, run-now, reschedule, set-priority, retype, set-payload",
		Example: "  outbox tasks list -type SEND_MAIL -state retrying",
	}, list, a.tasksCountCommand(), a.showCommand("", &cobra.Command{
		Short: "show a task in any state", Example: "  outbox tasks show 815",
		Long: "Shows a task: it waits or runs, or is a dead letter, or is finished and of a type that keeps its tasks.",
	}), a.tasksCancelCommand(), a.tasksRunNowCommand(), a.tasksRescheduleCommand(), a.tasksPriorityCommand(),
		a.tasksRetypeCommand(), a.tasksSetPayloadCommand())
}

func (a *app) tasksCountCommand() *cobra.Command {
	d := &filterFlags{of: taskview.OtherTasks}
	c := &cobra.Command{
		Use: "count", Short: "count the tasks that pass a filter", Args: cobra.NoArgs,
		Example: "  outbox tasks count -type SEND_MAIL -payload '{\"user_id\": 7}'",
		Long: `Counts the tasks that pass a filter, in any state without --state. It reads them; outbox types has the
counts of types and states.`,
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := d.read()
			if err != nil {
				return err
			}
			n, err := get(c.Context(), a, func(c *admin.Client, ctx context.Context) (admin.TaskCount, error) {
				return c.Count(ctx, admin.TaskQuery{Filter: f})
			})
			if err != nil {
				return err
			}
			return a.out.print(object{{"count", n.Count}}, grouped(n.Count))
		},
	}
	d.add(c)
	return c
}

func (a *app) historyCommand() *cobra.Command {
	var taskType string
	list := taskList(a, &cobra.Command{
		Short:   "list finished tasks, those enqueued last first",
		Example: "  outbox history list -type SEND_MAIL -limit 10",
		Long: `Lists the finished tasks of the types whose handlers keep them. OUTCOME is what a task ended as,
and the reason, if its handler gave one.`,
	}, func(ctx context.Context, c *admin.Client, p pageFlags) (admin.TaskPage, error) {
		return c.Tasks(ctx, admin.TaskQuery{
			Filter: admin.Filter{Type: taskType, State: admin.StateFinished}, After: p.after, Limit: p.limit,
		})
	}, ">TASK TYPE >ATTEMPT >FINISHED >TOOK OUTCOME", func(t admin.Task) []any {
		took := ""
		if !t.AttemptedAt.IsZero() {
			took = age(t.EndedAt.Sub(t.AttemptedAt))
		}
		return []any{t.ID, t.Type, t.Attempt, since(t.EndedAt), took, cutError(taskview.Outcome(t))}
	})
	typeFlag(list, &taskType)
	return group(&cobra.Command{
		Use: "history", Short: "finished tasks of the types that keep them: list, show, purge",
		Example: "  outbox history list -type SEND_MAIL",
	}, list, a.showCommand(admin.StateFinished, &cobra.Command{
		Short: "show a finished task", Example: "  outbox history show 815",
	}), a.historyPurgeCommand())
}

// typeFlag adds --type.
func typeFlag(c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "type", "", "of this task type")
}

// taskList makes c a list of tasks in pages. Optional columns stand before the last one.
func taskList(a *app, c *cobra.Command,
	read func(context.Context, *admin.Client, pageFlags) (admin.TaskPage, error), columns string,
	cells func(admin.Task) []any) *cobra.Command {
	c.Use = "list"
	all := func(ctx context.Context, c *admin.Client, p pageFlags) ([]admin.Task, string, error) {
		page, err := read(ctx, c, p)
		return page.Tasks, page.Next, err
	}
	return pages(a, c, "tasks", all, func(found []admin.Task) *table {
		names, more := strings.Fields(columns), taskview.Columns(found)
		last := len(names) - 1
		for i, c := range more {
			name := strings.ReplaceAll(strings.ToUpper(c.Name), " ", "_")
			names = slices.Insert(names, last+i, name)
		}
		t := newTable(strings.Join(names, " "))
		for _, task := range found {
			row := cells(task)
			for i, c := range more {
				row = slices.Insert(row, last+i, any(c.Of(task)))
			}
			notRead := []string{"runs", "timeline", "cancel_requested_at", "progress"}
			t.add(objectOf(task).without(notRead...), row...)
		}
		return t
	})
}

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
		var why admin.Why
		err = a.read(c.Context(), func(ctx context.Context, c *admin.Client) (err error) {
			if t, err = find(ctx, c); err == nil && payload {
				hidden, err = c.Payload(ctx, t.ID)
			}
			if err == nil {
				why, err = c.Why(ctx, t.ID) // the last, as it may end the transaction
			}
			return err
		})
		if errors.Is(err, admin.ErrNotFound) {
			return a.notThere(c.Context(), args[0])
		}
		if err != nil {
			return err
		}
		if only != "" && t.State != only {
			return notFound("task %d is %s, not %s: see outbox tasks show %d", t.ID, t.State, only, t.ID)
		}
		o, f := append(objectOf(t), member{"why", why.Causes}), taskFields(t)
		f.add("why", strings.Join(taskview.Causes(why, when), "\n"))
		if payload {
			o = append(o, objectOf(hidden)...)
			f.add("unique key", hidden.UniqueKey)
			f.add("ordering key", hidden.OrderingKey)
			f.add("group key", hidden.GroupKey)
			f.add("headers", indented(hidden.Headers))
			f.add("payload", indented(hidden.Payload))
			f.add("result", indented(hidden.Result))
		}
		return a.out.print(o, f.lines()...)
	}
	payloadFlag(c, &payload)
	return c
}

// notThere is the error of a task that is nowhere.
func (a *app) notThere(ctx context.Context, text string) error {
	why := admin.Why{Causes: []admin.Cause{{Text: "no task has this key in this database"}}}
	if id, err := taskID(text); err == nil {
		err := a.read(ctx, func(ctx context.Context, c *admin.Client) (err error) {
			why, err = c.Why(ctx, id)
			return err
		})
		if err != nil {
			return err
		}
	}
	return notFound("task %s is not there: %s", text, strings.Join(taskview.Causes(why, when), "\n"))
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

// maxInput bounds the payload from stdin: the most that outbox.MaxPayload allows.
const maxInput = 16 << 20

type enqueueFlags struct {
	priority, attempts         int
	at, unique, ordered, group string
	after, expires, period     time.Duration
	headers                    []string
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
	c.Flags().DurationVar(&f.period, "unique-for", 0, "the key is kept for this time, whatever becomes of the task")
	c.Flags().DurationVar(&f.expires, "expires-after", 0, "it does not run if it has not begun this long after it is due")
	c.Flags().StringVar(&f.ordered, "ordered", "", "key: its tasks run one after the other")
	c.Flags().StringVar(&f.group, "group", "", "key: of its tasks as many run at once as the handler's MaxRunningPerKey")
	c.Flags().StringArrayVar(&f.headers, "header", nil, "NAME=VALUE, beside the payload; may be repeated")
	return c
}

// payload is the JSON of an argument; - reads it from stdin.
func (a *app) payload(text string) (json.RawMessage, error) {
	payload := []byte(text)
	var err error
	if text == "-" {
		if payload, err = io.ReadAll(io.LimitReader(a.in, maxInput+1)); err != nil {
			return nil, fmt.Errorf("read the payload: %w", err)
		}
	}
	if _, err := (outbox.TaskSpec{Type: "any", Payload: json.RawMessage(payload)}).Encode(); err != nil {
		return nil, usage("%w", err)
	}
	return payload, nil
}

// newTask is the task of the arguments, if they are valid.
func (a *app) newTask(c *cobra.Command, taskType, text string, f enqueueFlags) (task outbox.TaskSpec, err error) {
	payload, err := a.payload(text)
	if err != nil {
		return task, err
	}
	opts := []outbox.Option{
		outbox.Schema(a.schema), outbox.Priority(f.priority), outbox.After(f.after), outbox.MaxAttempts(f.attempts),
		outbox.ExpiresAfter(f.expires),
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
		opts = append(opts, outbox.Unique(f.unique, outbox.For(f.period)))
	} else if f.period != 0 {
		return task, usage("--unique-for is of a --unique key")
	}
	if c.Flags().Changed("ordered") {
		opts = append(opts, outbox.OrderedBy(f.ordered))
	}
	if c.Flags().Changed("group") {
		opts = append(opts, outbox.GroupBy(f.group))
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
