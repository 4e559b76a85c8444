package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

// deadFilter are the flags that say which dead letters are meant.
type deadFilter struct {
	taskType, reason, error, since, until string
	older                                 time.Duration
}

func (d *deadFilter) flags(a *app, c *cobra.Command) {
	a.typeFlag(c, &d.taskType)
	c.Flags().StringVar(&d.reason, "reason", "", "that died for: attempts, handler, lost_connections or committed")
	c.Flags().StringVar(&d.error, "error", "", "whose last error contains this text")
	c.Flags().StringVar(&d.since, "since", "", "that died then or later: "+timeForms)
	c.Flags().StringVar(&d.until, "until", "", "that died before")
	c.Flags().DurationVar(&d.older, "older", 0, "that died at least this long ago, like 720h")
	_ = c.RegisterFlagCompletionFunc("reason", cobra.FixedCompletions([]string{"attempts", "handler", "lost_connections", "committed"}, cobra.ShellCompDirectiveNoFileComp))
}

// filter is what the flags mean, and the same in words.
func (d *deadFilter) filter() (f admin.Filter, words string, err error) {
	f = admin.Filter{Type: d.taskType, Reason: d.reason, Error: d.error, OlderThan: d.older}
	said := []string{}
	say := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	if d.taskType != "" {
		say("type %s", d.taskType)
	}
	switch f.Reason {
	case "":
	case admin.ReasonAttempts, admin.ReasonHandler, admin.ReasonLostConnections, admin.ReasonCommitted:
		say("reason %s", d.reason)
	default:
		return f, "", usage("--reason %q: use attempts, handler, lost_connections or committed", d.reason)
	}
	if d.error != "" {
		say("error containing %q", d.error)
	}
	if f.DiedAfter, err = parseTime("--since", d.since); err != nil {
		return f, "", err
	}
	if f.DiedBefore, err = parseTime("--until", d.until); err != nil {
		return f, "", err
	}
	if !f.DiedAfter.IsZero() {
		say("died since %s", f.DiedAfter.Format(time.RFC3339))
	}
	if !f.DiedBefore.IsZero() {
		say("died before %s", f.DiedBefore.Format(time.RFC3339))
	}
	if d.older < 0 {
		return f, "", usage("--older %v: must not be negative", d.older)
	}
	if d.older > 0 {
		say("older than %v", d.older)
	}
	return f, strings.Join(said, ", "), nil
}
