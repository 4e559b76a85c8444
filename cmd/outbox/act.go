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
	"github.com/txoutbox/outbox/admin"
	"golang.org/x/term"
)

// change calls f in a transaction, with a client that acts and writes entries into the audit log in it.
func (a *app) change(ctx context.Context, f func(ctx context.Context, tx *sql.Tx, c *admin.Client) error) error {
	return a.bounded(ctx, func(ctx context.Context) error {
		return outbox.InTx(ctx, a.db, func(tx *sql.Tx) error { return f(ctx, tx, a.client.In(tx)) })
	})
}

// note writes an entry into the audit log.
func (a *app) note(ctx context.Context, e admin.Entry) error {
	return a.change(ctx, func(ctx context.Context, _ *sql.Tx, c *admin.Client) error {
		_, err := c.WriteAudit(ctx, e)
		return err
	})
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
