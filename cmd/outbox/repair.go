package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

func (a *app) repairCommand() *cobra.Command {
	var o admin.RepairOptions
	var yes bool
	c := &cobra.Command{
		Use: "repair", Short: "find defects after a restore or a switch-over; with --yes repair them", Args: cobra.NoArgs,
		Example: "  outbox repair\n  outbox repair -yes\n  outbox repair -above 184467 -yes",
		Long: `Compares counts, sequences, unique keys, ordering keys, leases and leftovers with the tasks, after a
restore of the data alone or of a part, and after a switch-over by logical replication. Without
--yes it only reads and prints the defects. Relays and enqueueing go on, and a second repair finds
nothing. It prints conflicts and leaves them alone: the exit code is then 1. --timeout does not bound
it. To set sequences, the role must own the tables.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.connect(c.Context()); err != nil {
				return err
			}
			do := a.client.Defects
			if yes {
				do = a.client.Repair
			}
			found, err := do(c.Context(), o)
			if err != nil {
				return err
			}
			t := newTable("WHAT OF >IS >SHOULD_BE TO_DECIDE")
			conflicts := 0
			for _, d := range found {
				if d.Conflict != "" {
					conflicts++
				}
				t.add(d, d.Kind, d.Subject, d.Is, d.ShouldBe, d.Conflict)
			}
			lines := []string{"nothing to repair"}
			switch n := len(found) - conflicts; {
			case n > 0 && yes:
				lines = append(t.lines(), fmt.Sprintf("%d repaired", n))
			case n > 0:
				lines = append(t.lines(), "nothing was changed: outbox repair -yes repairs these")
			case conflicts > 0:
				lines = t.lines()
			}
			err = a.out.print(object{{"defects", t.json}, {"repaired", yes}}, lines...)
			if err == nil && conflicts > 0 {
				return fmt.Errorf("%s to be decided by a person", count(conflicts, "conflict"))
			}
			return err
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "repair the defects")
	c.Flags().Int64Var(&o.Above, "above", 0,
		"an id that new tasks must exceed: last_value of the old server's task_task_id_seq")
	return c
}
