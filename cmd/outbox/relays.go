package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

// relayState is alive, missing or dead.
func relayState(r admin.Relay) string {
	switch {
	case r.Missing:
		return "missing"
	case r.Alive:
		return "alive"
	}
	return "dead"
}

// tasksOf is the number of tasks in a relay's runs.
func tasksOf(r admin.Relay) (n int) {
	for _, run := range r.Runs {
		n += len(run.TaskIDs)
	}
	return n
}

// workersOf is the number of a relay's workers; "" if it is unknown.
func workersOf(r admin.Relay) string {
	if r.Workers == 0 {
		return ""
	}
	return fmt.Sprint(r.Workers)
}

func (a *app) relaysCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "relays", Short: "list relays and their runs; hand back the tasks of a dead relay", Args: cobra.NoArgs,
		Example: "  outbox relays",
		RunE: list(a, "relays", (*admin.Client).Relays, "RELAY HOST >PID STATE >SEEN >UP >WORKERS >TASKS TYPES",
			func(r admin.Relay) (any, []any) {
				return r, []any{
					r.ID, r.Host, r.PID, relayState(r), since(r.LastSeen), since(r.StartedAt), workersOf(r), tasksOf(r),
					strings.Join(r.Types, " "),
				}
			}),
	}
	c.AddCommand(a.handBackCommand())
	return c
}

func (a *app) handBackCommand() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "hand-back ID", Short: "make the leased tasks of a dead relay ready at once", Args: cobra.ExactArgs(1),
		Example: "  outbox relays hand-back 0b0e5fd5-2f4c-4d1b-9d3a-6f1f0a7c8e21",
		Long: `Makes the leased tasks of a relay ready at once. Use it if its node is surely dead: other relays take
the tasks over after 10 s anyway. A relay that lives after all loses these leases, and the contexts
of its handlers end.`,
		RunE: func(c *cobra.Command, args []string) error {
			id := args[0]
			found, err := get(c.Context(), a, (*admin.Client).Relays)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(found, func(r admin.Relay) bool { return r.ID == id })
			if i < 0 {
				return notFound("there is no relay %q; see outbox relays", id)
			}
			question := fmt.Sprintf("The relay %s on %s is alive. Take all leased tasks from it?", id, found[i].Host)
			if err := a.confirm(c.Context(), yes || !found[i].Alive, question); err != nil {
				return err
			}
			n, err := a.client.HandBack(c.Context(), id)
			if err != nil {
				return err
			}
			return a.out.print(object{{"relay_id", id}, {"handed_back", n}}, count(n, "task")+" handed back")
		},
	}
	yesFlag(c, &yes)
	return c
}
