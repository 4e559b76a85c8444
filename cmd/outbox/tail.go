package main

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/tail"
)

func (a *app) tailCommand() *cobra.Command {
	var filter admin.TailFilter
	c := &cobra.Command{
		Use: "tail", Short: "watch tasks begin and end, live", Args: cobra.NoArgs,
		Example: "  outbox tail -type SEND_MAIL -event failed,dead\n" +
			"  outbox tail -json | jq 'select(.event == \"dead\")'",
		Long: `Shows what relays do with tasks while they do it, one line for each event, until ctrl-C. Relays begin to
tell with their next heartbeat, within 3 s, and end within 16 s after the last tail. While nobody looks it
costs nothing. With -json each line is an object. An event is ` + strings.Join(tail.Events(), ", ") + `.

Relays send at most 2,000 events in a quarter of a second; a line says how many are left out. It needs a
connection of its own to the primary, not through a pooler, and the rights of a viewer. Any role of the
database can make up events: for the record of a task see outbox tasks show.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.connect(c.Context()); err != nil {
				return err
			}
			v := &tailView{a: a}
			return a.client.Tail(c.Context(), a.dsn(), filter, v.tell)
		},
	}
	c.Flags().StringArrayVar(&filter.Types, "type", nil, "only tasks of this type; may be given again")
	c.Flags().StringSliceVar(&filter.Events, "event", nil, "only these events, separated by commas")
	return c
}

// tailView prints the events of a tail.
type tailView struct {
	a      *app
	begun  bool // the columns have their names
	widest int  // of the types so far
}

// tailColumns are time, event, type, task, attempt, duration, relay, and reason and error.
const tailColumns = "%-12s  %-14s  %s  %9s  %7s  %8s  %-8.8s  %s"

func (v *tailView) tell(e admin.TailEvent) error {
	if v.a.out.json {
		return v.a.out.line(tailJSON(e))
	}
	at := e.At.Local().Format("15:04:05.000")
	switch e.Event {
	case admin.TailListening:
		fmt.Fprintf(v.a.err, "%s %s\n", at, listening(e))
		if v.begun {
			return nil
		}
		v.begun, v.widest = true, 16
		return v.print("TIME", "EVENT", "TYPE", "TASK", "ATTEMPT", "DURATION", "RELAY", "ERROR")
	case admin.TailDisconnected:
		fmt.Fprintf(v.a.err, "%s disconnected: %s; events are missing until it listens again\n", at, clean(e.Error))
		return nil
	case admin.TailLeftOut:
		fmt.Fprintf(v.a.err, "%s relay %.8s left out %s: more happens than it sends\n", at, e.RelayID,
			count(e.LeftOut, "event"))
		return nil
	}
	why := cutError(e.Error)
	if e.Reason != "" {
		why = strings.TrimSuffix(string(e.Reason)+": "+why, ": ")
	}
	return v.print(at, e.Event, e.Type, fmt.Sprint(e.TaskID), fmt.Sprint(e.Attempt), short(e.Duration), e.RelayID, why)
}

// print prints a line; the types of later lines are as wide as the widest one so far.
func (v *tailView) print(at, event, taskType, id, attempt, took, relay, why string) error {
	taskType = clean(taskType)
	v.widest = max(v.widest, utf8.RuneCountInString(taskType))
	taskType += strings.Repeat(" ", v.widest-utf8.RuneCountInString(taskType))
	line := fmt.Sprintf(tailColumns, at, event, taskType, id, attempt, took, relay, why)
	return v.a.out.print(nil, strings.TrimRight(line, " "))
}

// listening says how many relays are about to tell.
func listening(e admin.TailEvent) string {
	if e.Relays == 0 {
		return "no relay is alive; one that starts tells at once"
	}
	text := count(e.Relays, "relay") + " alive, waiting for the next heartbeat: at most 3 s"
	if e.Silent > 0 {
		text += fmt.Sprintf("; %d of an older version cannot tell", e.Silent)
	}
	return text
}

// short is a duration in milliseconds, in tenths of a second up to a minute, or as others; "-" without one.
func short(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < time.Second:
		return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond))
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return age(d)
}

// tailJSON has the members that mean something for an event.
func tailJSON(e admin.TailEvent) object {
	o := objectOf(e)
	ofTask := []string{"type", "kind", "task_id", "attempt", "duration_seconds", "reason"}
	switch e.Event {
	case admin.TailListening:
		return o.without(append(ofTask, "relay_id", "error", "left_out")...)
	case admin.TailDisconnected:
		return o.without(append(ofTask, "relay_id", "left_out", "relays", "silent")...)
	case admin.TailLeftOut:
		return o.without(append(ofTask, "error", "relays", "silent")...)
	}
	return o.without("left_out", "relays", "silent")
}
