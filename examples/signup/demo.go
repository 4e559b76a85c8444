package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/internal/testing/child"
)

// demo signs up users while relay processes are killed, then counts.
type demo struct {
	signUps int
	kills   int           // during the sign-ups
	relays  int           // processes at a time
	lasting time.Duration // of the sign-ups
}

func (d demo) run(ctx context.Context, url string, out io.Writer) (err error) {
	start := time.Now()
	db, err := devdb.Open(ctx, url, tables)
	if err != nil {
		return err
	}
	defer db.Close()
	inbox, err := startSink(0)
	if err != nil {
		return err
	}
	defer inbox.close()
	fmt.Fprintf(out, "%d users sign up, %d relay processes work, %d times the busiest is killed\n", d.signUps, d.relays,
		d.kills)
	ran, err := d.disturb(ctx, db, url, inbox, out)
	if err != nil {
		return err
	}
	err = d.count(ctx, db, inbox, ran, out)
	fmt.Fprintf(out, "\nin %.0f s\n", time.Since(start).Seconds())
	return err
}

// disturb signs up and kills at the same time, and waits until no task is left. It returns how many
// tasks were running when their relays were killed.
func (d demo) disturb(ctx context.Context, db *sql.DB, url string, inbox *sink, out io.Writer) (ran int, err error) {
	relays, config := make([]*child.Process, d.relays), childConfig{URL: url, Mails: inbox.url}
	defer func() {
		for _, r := range relays {
			if r != nil {
				err = errors.Join(err, r.Stop())
			}
		}
	}()
	for i := range relays {
		if relays[i], err = child.Start(config, os.Stderr); err != nil {
			return 0, err
		}
	}
	signedUp := make(chan error, 1)
	go func() { signedUp <- d.signUpAll(ctx, db) }()
	for n := 0; n < d.kills; {
		between := d.lasting / time.Duration(d.kills)
		if err := wait(ctx, between/2+rand.N(between/2)); err != nil {
			return 0, errors.Join(err, <-signedUp)
		}
		r, err := busiest(ctx, db, relays)
		if err != nil {
			return 0, err
		}
		(*r).Kill9() // it cannot see it coming
		running, err := runningOf(ctx, db, (*r).Pid)
		if err != nil {
			return 0, err
		}
		if running > 0 { // else it came to the end of its last task in between
			n++
			fmt.Fprintf(out, "kill %d of %d: relay process %d, which ran %d tasks\n", n, d.kills, (*r).Pid, running)
		}
		ran += running
		if *r, err = child.Start(config, os.Stderr); err != nil {
			return 0, err
		}
	}
	if err := <-signedUp; err != nil {
		return 0, err
	}
	fmt.Fprintln(out, "all are signed up; mails of killed relays are taken over 10 s after the kill")
	return ran, untilIdle(ctx, db)
}

// signUpAll signs up at an even pace.
func (d demo) signUpAll(ctx context.Context, db *sql.DB) error {
	start := time.Now()
	for n := range d.signUps {
		due := d.lasting * time.Duration(n) / time.Duration(d.signUps)
		if err := wait(ctx, due-time.Since(start)); err != nil {
			return err
		}
		if err := signUp(ctx, db, fmt.Sprintf("user-%d@example.com", n)); err != nil {
			return fmt.Errorf("sign-up %d: %w", n, err)
		}
	}
	return nil
}

// busiest waits until tasks run, and returns the relay that runs most of them.
func busiest(ctx context.Context, db *sql.DB, relays []*child.Process) (found **child.Process, err error) {
	for {
		most := 0
		for i := range relays {
			running, err := runningOf(ctx, db, relays[i].Pid)
			if err != nil {
				return nil, err
			}
			if running > most {
				most, found = running, &relays[i]
			}
		}
		if found != nil {
			return found, nil
		}
		if err := wait(ctx, 10*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// runningOf counts the tasks that a process has claimed and not finished: runs inside
// transactions are in the journal, leased ones in the task table.
func runningOf(ctx context.Context, db *sql.DB, pid int) (n int, err error) {
	err = db.QueryRowContext(ctx, `
		WITH r AS (SELECT relay_id FROM outbox.relay WHERE pid = $1 ORDER BY started_at DESC LIMIT 1)
		SELECT (SELECT count(*) FROM outbox.running JOIN r USING (relay_id))
		     + (SELECT count(*) FROM outbox.task JOIN r USING (relay_id) WHERE state = 'leased')`, pid).Scan(&n)
	return n, err
}

// untilIdle waits until no task is left, or for two minutes; the count says then what was left.
func untilIdle(ctx context.Context, db *sql.DB) error {
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); {
		var left bool
		if err := db.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM outbox.task)`).Scan(&left); err != nil || !left {
			return err
		}
		if err := wait(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// count prints the result, and returns an error if it is not as promised.
func (d demo) count(ctx context.Context, db *sql.DB, inbox *sink, ran int, out io.Writer) error {
	var users, credits, credited, left, dead int
	if err := db.QueryRowContext(ctx, `
		SELECT (SELECT count(*) FROM usr), (SELECT count(*) FROM ledger), (SELECT count(DISTINCT usr_id) FROM ledger),
		       (SELECT count(*) FROM outbox.task), (SELECT count(*) FROM outbox.dead_task)`).Scan(&users, &credits,
		&credited, &left, &dead); err != nil {
		return err
	}
	mails, kept, mailed := 0, inbox.inbox().Mails, map[string]bool{}
	for _, m := range kept {
		mails += m.Copies
		mailed[m.To] = true
	}
	fmt.Fprintf(out, `
users        %5d
credits      %5d  for %d users: exactly once. One commit has the credit and the end of its task.
mails        %5d  for %d users: at least once. %d came again: their relay was killed after
                    it had sent them, and before it had stored the end of their tasks.
                    The receiver knows a mail by its key, and kept %d.
tasks left   %5d
dead letters %5d
tasks killed %5d  ran in a relay when it was killed; none is lost
`, users, credits, credited, mails, len(mailed), mails-len(kept), len(kept), left, dead, ran)
	if users != d.signUps || credits != d.signUps || credited != d.signUps || len(mailed) != d.signUps ||
		len(kept) != d.signUps || left+dead > 0 || ran < d.kills {
		return fmt.Errorf("the numbers are not as promised after %d sign-ups", d.signUps)
	}
	return nil
}
