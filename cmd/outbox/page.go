package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/deadletter"
)

// page is an object in JSON: what a command did, or a page of a list.
type page map[string]any

func pageFlags(c *cobra.Command, limit *int, after *string) {
	c.Flags().IntVar(limit, "limit", 50, "so many at most, up to 1000")
	c.Flags().StringVar(after, "after", "", "the next page: what the last one ended with")
	_ = c.RegisterFlagCompletionFunc("after", cobra.NoFileCompletions)
}

func checkLimit(n int) error {
	if n < 1 || n > 1000 {
		return usage("--limit %d: must be between 1 and 1000", n)
	}
	return nil
}

// more says on stderr how the next page is had.
func (a *app) more(next string) error {
	if next != "" {
		fmt.Fprintf(a.err, "there may be more: -after %s\n", clean(next))
	}
	return nil
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

func formatCursor(c deadletter.Cursor) string {
	return strconv.FormatInt(c.DiedAt.UnixMicro(), 10) + "." + strconv.FormatInt(c.TaskID, 10)
}

func parseCursor(text string) (deadletter.Cursor, error) {
	if text == "" {
		return deadletter.Cursor{}, nil
	}
	at, id, _ := strings.Cut(text, ".")
	micros, err1 := strconv.ParseInt(at, 10, 64)
	taskID, err2 := strconv.ParseInt(id, 10, 64)
	if err1 != nil || err2 != nil {
		return deadletter.Cursor{}, usage("--after %q is not what a page ended with", text)
	}
	return deadletter.Cursor{DiedAt: time.UnixMicro(micros), TaskID: taskID}, nil
}
