package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

// relayInfo is an admin.Relay in JSON.
type relayInfo struct {
	RelayID     string   `json:"relay_id"`
	Host        string   `json:"host"`
	PID         int      `json:"pid"`
	StartedAt   stamp    `json:"started_at"`
	AliveUntil  stamp    `json:"alive_until"`
	Alive       bool     `json:"alive"`
	Types       []string `json:"types"`
	Workers     int      `json:"workers"`
	Connections int      `json:"connections"`
	Runs        []run    `json:"runs"`
}

func newRelay(r admin.Relay) relayInfo {
	return relayInfo{r.RelayID, r.Host, r.PID, stamp{r.StartedAt}, stamp{r.AliveUntil}, r.Alive, list(r.Types), r.Workers, r.Connections, mapped(r.Runs, newRun)}
}

func (a *app) relays(ctx context.Context) (found []admin.Relay, err error) {
	err = a.read(ctx, func(ctx context.Context, c *admin.Client) error {
		found, err = c.Relays(ctx)
		return err
	})
	return found, err
}

// tasksOf is how many tasks a relay runs, of those that admin.Relay has.
func tasksOf(r admin.Relay) (n int) {
	for _, run := range r.Runs {
		n += max(len(run.TaskIDs), 1)
	}
	return n
}

func (a *app) relaysCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "relays", Short: "list relays with what they run; hand back what a dead one has", Args: cobra.NoArgs, Example: "  outbox relays",
		RunE: func(c *cobra.Command, _ []string) error {
			found, err := a.relays(c.Context())
			if err != nil {
				return err
			}
			return a.out.print(page{"relays": mapped(found, newRelay)}, func() error {
				t := newTable("RELAY", "HOST", ">PID", "STATE", ">UP", ">WORKERS", ">TASKS", "TYPES")
				for _, r := range found {
					workers := ""
					if r.Workers > 0 {
						workers = fmt.Sprint(r.Workers)
					}
					t.add(r.RelayID, r.Host, r.PID, aliveText(r), a.out.since(r.StartedAt), workers, tasksOf(r), strings.Join(r.Types, " "))
				}
				return a.out.table(t)
			})
		},
	}
	c.AddCommand(a.handBackCommand())
	return c
}

func aliveText(r admin.Relay) string {
	if r.Alive {
		return "alive"
	}
	return "dead"
}

func (a *app) handBackCommand() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "hand-back ID", Short: "make the leased tasks of a dead relay ready at once", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeRelays,
		Example: "  outbox relays hand-back 0b0e5fd5-2f4c-4d1b-9d3a-6f1f0a7c8e21",
		Long: `Makes the tasks that a relay holds leases on ready at once: your word that its node is dead, ahead of the 10 s after which others take them over. A
relay that lives after all loses these leases, and its handlers are told.`,
		RunE: func(c *cobra.Command, args []string) error {
			ctx := c.Context()
			found, err := a.relays(ctx)
			if err != nil {
				return err
			}
			var held *admin.Relay
			for i := range found {
				if found[i].RelayID == args[0] {
					held = &found[i]
				}
			}
			if held == nil {
				return notFound("there is no relay %q; see outbox relays", args[0])
			}
			if held.Alive {
				question := fmt.Sprintf("The relay %s on %s is alive. Take all leased tasks from it?", held.RelayID, held.Host)
				if err := a.confirm(ctx, yes, question); err != nil {
					return err
				}
			}
			n, err := a.client.HandBack(ctx, held.RelayID)
			if err != nil {
				return err
			}
			return a.out.print(page{"relay_id": held.RelayID, "tasks": n}, func() error { return a.out.say("%s handed back", count(n, "task")) })
		},
	}
	yesFlag(c, &yes)
	return c
}

func (a *app) completeRelays(c *cobra.Command, args []string, _ string) (ids []string, _ cobra.ShellCompDirective) {
	found, err := a.relays(c.Context())
	if err == nil && len(args) == 0 {
		for _, r := range found {
			ids = append(ids, r.RelayID)
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}
