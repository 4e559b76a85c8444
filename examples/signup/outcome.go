package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// outcome is what a demo has counted.
type outcome struct {
	demo            demo
	users           int
	credits         int // rows of the ledger,
	credited        int // and users who have one
	mails           int // accepted by the mail server, all copies,
	mailed          int // and users who got one
	tasksLeft, dead int
	running         []int // tasks at each kill
	took            time.Duration
}

func (d demo) checkEmpty(ctx context.Context, db *database) error {
	var n int
	err := db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM usr) + (SELECT count(*) FROM outbox.task)
		+ (SELECT count(*) FROM outbox.dead_task)`).Scan(&n)
	if err == nil && n > 0 {
		err = errors.New("the demo counts all users and tasks, so it needs a database without any")
	}
	return err
}

// untilIdle waits until no task is left, or for as long as patience; the count says then what was left.
func untilIdle(ctx context.Context, db *sql.DB, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		var left bool
		if err := db.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM outbox.task)`).Scan(&left); err != nil {
			return err
		}
		if !left {
			return nil
		}
		if err := wait(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func (d demo) count(ctx context.Context, db *sql.DB, inbox *sink, running []int, took time.Duration) (*outcome, error) {
	o := &outcome{demo: d, running: running, took: took}
	err := db.QueryRowContext(ctx, `SELECT
		(SELECT count(*) FROM usr),
		(SELECT count(*) FROM ledger),
		(SELECT count(DISTINCT usr_id) FROM ledger),
		(SELECT count(*) FROM outbox.task),
		(SELECT count(*) FROM outbox.dead_task)`).Scan(&o.users, &o.credits, &o.credited, &o.tasksLeft, &o.dead)
	if err != nil {
		return nil, err
	}
	mailed := map[string]bool{}
	for _, m := range inbox.newest(maxMails) {
		o.mails += m.Copies
		mailed[m.To] = true
	}
	o.mailed = len(mailed)
	return o, nil
}

func (o *outcome) print(out io.Writer) {
	row := func(name string, n int, note string, args ...any) {
		fmt.Fprintf(out, "%-14s %5d  %s\n", name, n, fmt.Sprintf(note, args...))
	}
	fmt.Fprintln(out)
	row("users", o.users, "signed up through HTTP")
	row("credits", o.credits, "to %d users; %d repeated", o.credited, o.credits-o.credited)
	row("mails", o.mails, "to %d users; %d repeated", o.mailed, o.mails-o.mailed)
	row("tasks left", o.tasksLeft, "")
	row("dead", o.dead, "")
	row("relays killed", len(o.running), "tasks running at each kill: %s", strings.Trim(fmt.Sprint(o.running), "[]"))
	fmt.Fprintf(out, "\nin %.0f s\n", o.took.Seconds())
}

// check names everything that is not as promised.
func (o *outcome) check() error {
	var errs []error
	must := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	busy := 0
	for _, n := range o.running {
		if n > 0 {
			busy++
		}
	}
	n := o.demo.signUps
	must(o.users == n, "users: %d, want %d", o.users, n)
	must(o.credits == n && o.credited == n, "credits: %d to %d users, want one for each of %d", o.credits, o.credited, n)
	must(o.mails >= n && o.mailed == n, "mails: %d to %d users, want at least one for each of %d", o.mails, o.mailed, n)
	must(o.tasksLeft == 0, "tasks left: %d, want 0", o.tasksLeft)
	must(o.dead == 0, "dead: %d, want 0", o.dead)
	must(len(o.running) >= o.demo.kills, "relays killed: %d, want %d", len(o.running), o.demo.kills)
	must(2*busy > len(o.running), "tasks were running at %d of %d kills, want most", busy, len(o.running))
	return errors.Join(errs...)
}
