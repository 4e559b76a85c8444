package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/audit"
	"golang.org/x/term"
)

// change calls f and writes down what it did, in one transaction. The zero entry is not written: nothing was changed.
func (a *app) change(ctx context.Context, f func(ctx context.Context, tx *sql.Tx) (audit.Entry, error)) error {
	return a.changes(ctx, func(ctx context.Context, tx *sql.Tx) ([]audit.Entry, error) {
		e, err := f(ctx, tx)
		if e.Action == "" {
			return nil, err
		}
		return []audit.Entry{e}, err
	})
}

// changes is change for what may need more than one entry.
func (a *app) changes(ctx context.Context, f func(ctx context.Context, tx *sql.Tx) ([]audit.Entry, error)) error {
	return a.bounded(ctx, func(ctx context.Context) error {
		return outbox.InTx(ctx, a.db, func(tx *sql.Tx) error {
			entries, err := f(ctx, tx)
			for _, e := range entries {
				if err == nil {
					err = a.write(ctx, tx, e)
				}
			}
			return err
		})
	})
}

// counted is the entry of an action, zero where it was about no task.
func counted(action, target string, n int64) audit.Entry {
	if n == 0 {
		return audit.Entry{}
	}
	return audit.Entry{Action: action, Target: target, Count: n}
}

// noted calls f, which takes no transaction, and writes down before it that it begins and after it what came of it.
func (a *app) noted(ctx context.Context, e audit.Entry, f func(ctx context.Context) (int64, error)) error {
	e.Count = 0
	note := func(ctx context.Context, e audit.Entry) error {
		return a.bounded(ctx, func(ctx context.Context) error {
			return outbox.InTx(ctx, a.db, func(tx *sql.Tx) error { return a.write(ctx, tx, e) })
		})
	}
	if err := note(ctx, e); err != nil {
		return err
	}
	n, err := f(ctx)
	after := e
	if after.Action, after.Count = e.Action+": done", n; err != nil {
		after.Action = e.Action + ": failed"
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second) // also when ctrl-C ended f
	defer cancel()
	return errors.Join(err, note(late, after))
}

func (a *app) write(ctx context.Context, tx *sql.Tx, e audit.Entry) error {
	e.Actor, e.Tool = cutBytes(a.who(), 256), "outbox"
	e.Target = cutBytes(e.Target, maxTarget)
	_, err := audit.Write(ctx, tx, e, audit.Schema(a.schema))
	return err
}

// who is the actor of the audit.
func (a *app) who() string {
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

// cutBytes is the beginning of a text, of n bytes at most, with … where it is cut.
func cutBytes(s string, n int) string {
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n-len("…")], "") + "…"
	}
	return s
}

// yesFlag adds --yes.
func yesFlag(c *cobra.Command, yes *bool) { c.Flags().BoolVar(yes, "yes", false, "do not ask") }

var errDeclined = errors.New("nothing was done")

// confirm asks on the terminal, unless yes.
func (a *app) confirm(ctx context.Context, yes bool, question string) error {
	if yes {
		return nil
	}
	in, ok := a.in.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
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

// progress says on stderr how far something is that takes long: on a terminal in one line, else in a line each 5 seconds.
type progress struct {
	w       io.Writer
	tty     bool
	verb    string
	of      int64
	printed time.Time
	open    bool // a line on the terminal
}

func (a *app) progress(verb string, of int64) *progress {
	f, ok := a.err.(*os.File)
	return &progress{w: a.err, tty: ok && term.IsTerminal(int(f.Fd())), verb: verb, of: of, printed: time.Now()}
}

func (p *progress) at(n int64) {
	every := 5 * time.Second
	if p.tty {
		every = 200 * time.Millisecond
	}
	if time.Since(p.printed) < every {
		return
	}
	p.printed = time.Now()
	text := fmt.Sprintf("%s of %s %s", grouped(n), grouped(p.of), p.verb)
	if p.tty {
		fmt.Fprintf(p.w, "\r%s\x1b[K", text)
		p.open = true
	} else {
		fmt.Fprintln(p.w, text)
	}
}

// end removes the line.
func (p *progress) end() {
	if p.open {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
