package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/doctor"
)

func (a *app) doctorCommand() *cobra.Command {
	var all bool
	var held, starving time.Duration
	c := &cobra.Command{
		Use: "doctor", Short: "find faults of the outbox and its server, with their remedies", Args: cobra.NoArgs,
		Example: "  outbox doctor\n  outbox doctor -json | jq '.findings[] | select(.severity == \"critical\")'",
		Long: `Checks the schema, vacuum and the sessions that hold it up, notifications, limits and pools, types
without a relay, types that starve, and indexes, and prints remedies. It only reads. Without --all it
only counts the checks without a fault; JSON has them all. The exit code is 4 if the worst finding is
a warning or critical, and else 1 if a check was not possible (unknown), mostly for lack of a right.
--timeout does not bound it: each check has 5 s.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.open(); err != nil {
				return err
			}
			found, err := doctor.Check(c.Context(), a.db, doctor.Schema(a.schema), doctor.HeldFor(held),
				doctor.StarvingFor(starving))
			if errors.Is(err, outbox.ErrInvalidOption) {
				return usage("%w", err)
			}
			if err != nil {
				return err
			}
			lines, fine := []string(nil), 0
			for _, f := range found {
				if f.Severity == doctor.SeverityOK && !all && f.Check != "environment" {
					fine++
				} else {
					lines = append(lines, findingLines(f)...)
				}
			}
			if fine > 0 {
				lines = append(lines, count(fine, "check")+" fine")
			}
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
	c.Flags().BoolVar(&all, "all", false, "print also the checks without a fault")
	c.Flags().DurationVar(&held, "held", 0, "the least age of reported transactions that hold up vacuum (default 5m)")
	c.Flags().DurationVar(&starving, "starving", 0,
		"the least reported age of the oldest ready task of a type (default 1m)")
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
