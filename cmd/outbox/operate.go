package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/internal/taskview"
)

func (a *app) doctorCommand() *cobra.Command {
	var all bool
	var held, starving time.Duration
	var task int64
	c := &cobra.Command{
		Use: "doctor", Short: "find faults of the outbox and its server, with their remedies", Args: cobra.NoArgs,
		Example: "  outbox doctor\n  outbox doctor -task 42\n" +
			"  outbox doctor -json | jq '.findings[] | select(.severity == \"critical\")'",
		Long: `Checks the schema, vacuum and the sessions that hold it up, notifications, limits and pools, types
without a relay, types that starve, and indexes, and prints remedies. With --task ID it also says why
that task waits. It only reads. Without --all it only counts the checks without a fault; JSON has
them all. The exit code is 4 if the worst finding is a warning or critical, and else 1 if a check was not possible (unknown), mostly for lack of a right.
--timeout does not bound it: each check has 5 s.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.open(); err != nil {
				return err
			}
			found, err := doctor.Check(c.Context(), a.db, doctor.Schema(a.schema), doctor.HeldFor(held),
				doctor.StarvingFor(starving), doctor.Task(task))
			if errors.Is(err, outbox.ErrInvalidOption) {
				return usage("%w", err)
			}
			if err != nil {
				return err
			}
			var asked, lines []string
			fine := 0
			for _, f := range found {
				switch {
				case f.Check == "task" && f.Severity != doctor.SeverityOK: // what was asked
					asked = append(asked, findingLines(f)...)
				case f.Severity == doctor.SeverityOK && !all && f.Check != "environment":
					fine++
				default:
					lines = append(lines, findingLines(f)...)
				}
			}
			if fine > 0 {
				lines = append(lines, count(fine, "check")+" fine")
			}
			lines = append(asked, lines...)
			worst := doctor.Worst(found)
			err = a.out.print(object{{"worst", worst}, {"findings", found}}, lines...)
			if err == nil && worst.AtLeast(doctor.SeverityWarning) {
				return asExit{exitFindings, errPrinted}
			}
			if err == nil && worst == doctor.SeverityUnknown {
				return errPrinted
			}
			return err
		},
	}
	c.Flags().Int64Var(&task, "task", 0, "ID: say why this task waits, too")
	c.Flags().BoolVar(&all, "all", false, "print also the checks without a fault")
	c.Flags().DurationVar(&held, "held", 0,
		"the least age of reported transactions that keep vacuum from its work; 0: 5m")
	c.Flags().DurationVar(&starving, "starving", 0,
		"the least reported age of the oldest ready task of a type; 0: 1m")
	return c
}

// errPrinted sets the exit code; the findings are printed already.
var errPrinted = errors.New("")

func findingLines(f doctor.Finding) []string {
	subject := ""
	if f.Subject != "" {
		subject = f.Subject + ": "
	}
	lines := []string{fmt.Sprintf("%-8v  %s: %s%s", f.Severity, f.Check, subject, f.Message)}
	if f.Remedy != "" {
		lines = append(lines, strings.Repeat(" ", 10)+"do: "+f.Remedy)
	}
	return lines
}

func (a *app) repairCommand() *cobra.Command {
	var o admin.RepairOptions
	c := &cobra.Command{
		Use: "repair", Short: "find defects after a restore or a switch-over; with --yes repair them", Args: cobra.NoArgs,
		Example: "  outbox repair\n  outbox repair -yes\n  outbox repair -above 184467 -yes",
		Long: `Compares counts, sequences, unique, ordering and group keys, leases and leftovers with the tasks, after a
restore of the data alone or of a part, and after a switch-over by logical replication. Without
--yes it only reads and prints the defects. Relays and enqueueing go on, and a second repair finds
nothing. It prints conflicts and leaves them alone: the exit code is then 1. --timeout does not bound
it. To set sequences, the role must own the tables.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.connect(c.Context()); err != nil {
				return err
			}
			do := a.client.Defects
			if a.yes {
				do = a.client.Repair
			}
			found, err := do(c.Context(), o)
			if err != nil {
				return err
			}
			conflicts := 0
			t := tableOf("WHAT OF >IS >SHOULD_BE TO_DECIDE", found, func(d admin.Defect) []any {
				if d.Conflict != "" {
					conflicts++
				}
				return []any{d.Kind, d.Subject, d.Is, d.ShouldBe, d.Conflict}
			})
			lines := []string{"nothing to repair"}
			switch n := len(found) - conflicts; {
			case n > 0 && a.yes:
				lines = append(t.lines(), fmt.Sprintf("%d repaired", n))
			case n > 0:
				lines = append(t.lines(), "nothing was changed: outbox repair -yes repairs these")
			case conflicts > 0:
				lines = t.lines()
			}
			err = a.out.print(object{{"defects", t.json}, {"repaired", a.yes}}, lines...)
			if err == nil && conflicts > 0 {
				return fmt.Errorf("%s to be decided by a person", count(conflicts, "conflict"))
			}
			return err
		},
	}
	c.Flags().BoolVar(&a.yes, "yes", false, "repair the defects")
	c.Flags().Int64Var(&o.Above, "above", 0,
		"an id that new tasks must exceed: last_value of the old server's task_task_id_seq")
	return c
}

func (a *app) reindexCommand() *cobra.Command {
	return &cobra.Command{
		Use: "reindex", Short: "rebuild all indexes while relays work", Args: cobra.NoArgs, Example: "  outbox reindex",
		Long: `Rebuilds the outbox's indexes with REINDEX INDEX CONCURRENTLY, one after the other: relays and
enqueueing go on. Each build waits for all older transactions, so --timeout does not bound it. Ctrl-C
ends it; the next reindex drops the leftovers. The role must own the tables.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.connect(c.Context()); err != nil {
				return err
			}
			fmt.Fprintln(a.err, "rebuilding the indexes: each waits for the open transactions")
			found, err := a.client.Reindex(c.Context())
			if err != nil && len(found) == 0 {
				return err
			}
			t := tableOf("TABLE INDEX >BEFORE >AFTER", found, func(i admin.Index) []any {
				return []any{i.Table, i.Name, size(i.BytesBefore), size(i.BytesAfter)}
			})
			return errors.Join(err, a.out.print(object{{"indexes", t.json}}, t.lines()...)) // also with an error
		},
	}
}

// size is a number of bytes for people.
func size(n int64) string {
	if n < 10<<20 {
		return fmt.Sprintf("%d kB", n>>10)
	}
	return fmt.Sprintf("%d MB", n>>20)
}

func (a *app) adoptCommand() *cobra.Command {
	var o admin.AdoptOptions
	c := &cobra.Command{
		Use: "adopt", Short: "let relays run in this database, which may be a copy", Args: cobra.NoArgs,
		Example: "  outbox adopt -keep-id\n  outbox adopt\n  outbox adopt -environment staging -discard",
		Long: `Relays run nothing in a copy of the database, such as a restored dump, until it is adopted. The
command names the original, counts the waiting tasks, and asks. Then relays begin within seconds.

--keep-id is for production that was moved, by a dump or by logical replication: this database succeeds
the original, and the keys of its tasks stay the same. Stop the original's relays before.

Without it this is a copy: tasks get other keys than in the original. Relays run the tasks that came
along. With --discard the command first deletes them all, with the dead letters and the schedules
that are not paused, so staging sends nothing of production's. Nothing brings them back.

A snapshot or a clone looks like its original: adopt it with --environment, the
relay.Config.Environment of its relays.`,
		RunE: func(c *cobra.Command, _ []string) error {
			question, err := a.askAdopt(c.Context(), o)
			if err != nil {
				return err
			}
			if err := a.confirm(c.Context(), question); err != nil {
				return err
			}
			var done admin.AdoptResult
			err = a.bounded(c.Context(), func(ctx context.Context) (err error) {
				done, err = a.client.Adopt(ctx, o)
				return err
			})
			if err != nil {
				return err
			}
			lines := []string{"adopted: this is the database " + done.DatabaseID}
			if o.Discard {
				lines = append(lines, fmt.Sprintf("%s, %s and %s discarded",
					count(done.Tasks, "task"), count(done.DeadLetters, "dead letter"), count(done.Schedules, "schedule")))
			} else if done.Leases > 0 {
				lines = append(lines, count(done.Leases, "task")+" of the original's relays ready again")
			}
			return a.out.print(done, lines...)
		},
	}
	c.Flags().BoolVar(&o.Discard, "discard", false,
		"delete the tasks and dead letters of the original, and the schedules that are not paused")
	c.Flags().BoolVar(&o.KeepID, "keep-id", false, "this database succeeds the original, with the same task keys")
	c.Flags().StringVar(&o.Environment, "environment", "",
		"write this environment into the database: the relay.Config.Environment of its relays")
	return a.asks(c)
}

// askAdopt connects, and returns the question, with the original and the waiting tasks.
func (a *app) askAdopt(ctx context.Context, o admin.AdoptOptions) (question string, err error) {
	var of admin.Origin
	var sum admin.Type
	err = a.read(ctx, func(ctx context.Context, c *admin.Client) error {
		if of, err = c.Origin(ctx); err != nil {
			return err
		}
		types, err := c.Types(ctx)
		sum = taskview.Sum(types)
		return err
	})
	if err != nil {
		return "", err
	}
	state := of.Problem
	if state == "" {
		environment := ""
		if of.Environment != "" {
			environment = fmt.Sprintf(" of the environment %q", of.Environment)
		}
		state = fmt.Sprintf("this database is %q%s, and not known to be a copy", of.Name, environment)
	}
	waiting := count(sum.Ready+sum.Scheduled+sum.Retrying+sum.Leased+sum.Waiting, "task")
	letters := count(sum.Dead, "dead letter")
	do := fmt.Sprintf("Take it over, with %s to run", waiting)
	switch {
	case o.KeepID:
		do = fmt.Sprintf("Continue the original here, with %s to run", waiting)
	case o.Discard:
		do = fmt.Sprintf("DELETE its %s and %s, and take it over", waiting, letters)
	}
	return strings.ToUpper(state[:1]) + state[1:] + ". " + do + "?", nil
}
