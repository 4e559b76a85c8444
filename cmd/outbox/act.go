package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
	"golang.org/x/term"
)

// actorName is the actor of the audit log.
func (a *app) actorName() string {
	if a.actor != "" {
		return a.actor
	}
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}

// asks adds --yes to a command that confirms what it does.
func (a *app) asks(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&a.yes, "yes", false, "do not ask")
	return c
}

// isTerminal reports whether a stream of the command is a terminal.
func isTerminal(stream any) (*os.File, bool) {
	f, ok := stream.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

var errDeclined = errors.New("nothing was done")

// confirm asks on the terminal, unless --yes.
func (a *app) confirm(ctx context.Context, question string) error {
	if a.yes {
		return nil
	}
	in, ok := isTerminal(a.in)
	if !ok {
		return usage("%s Say --yes, as there is no terminal to ask on", question)
	}
	fmt.Fprintf(a.err, "%s [y/N] ", clean(question))
	answer := make(chan string, 1)
	go func() {
		line, err := bufio.NewReader(io.LimitReader(in, 1000)).ReadString('\n')
		if err != nil {
			fmt.Fprintln(a.err)
		}
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case text := <-answer:
		if text == "y" || text == "yes" {
			return nil
		}
		return errDeclined
	case <-ctx.Done():
		fmt.Fprintln(a.err)
		return ctx.Err()
	}
}

// onTasks does something to the tasks of args, prints the result, and fails if some are not done.
func (a *app) onTasks(c *cobra.Command, args []string, missing string,
	do func(ctx context.Context, c *admin.Client, ids []int64) (done []int64, _ object, lines []string, err error),
) error {
	ids, err := taskIDs(args)
	if err != nil {
		return err
	}
	var done []int64
	var result object
	var lines []string
	err = a.act(c.Context(), func(ctx context.Context, c *admin.Client) (err error) {
		done, result, lines, err = do(ctx, c, ids)
		return err
	})
	if err != nil {
		return err
	}
	rest := without(ids, done)
	err = a.out.print(append(result, member{"not_found", rest}), lines...)
	if err == nil && len(rest) > 0 {
		return notFound("%s: %s", missing, join(rest))
	}
	return err
}

// each is a line for each of some ids.
func each(ids []int64, format string) (lines []string) {
	for _, id := range ids {
		lines = append(lines, fmt.Sprintf(format, id))
	}
	return lines
}

// join is a list of ids for people.
func join(ids []int64) string { return strings.Join(each(ids, "%d"), ", ") }

// without are the ids that are not among some others.
func without(ids, some []int64) []int64 {
	return slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return slices.Contains(some, id) })
}

// taskID reads the id of a task.
func taskID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, usage("%q is no id of a task: that is a number", text)
	}
	return id, nil
}

// taskIDs reads ids. One that is given twice counts once.
func taskIDs(args []string) (ids []int64, err error) {
	for _, arg := range args {
		id, err := taskID(arg)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
