package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

// typeInfo is an admin.Type in JSON.
type typeInfo struct {
	typeStats
	Paused     bool    `json:"paused"`
	MaxRunning int     `json:"max_running"`
	Rate       int     `json:"rate"`
	RatePer    float64 `json:"rate_per_seconds"`
	Relays     int     `json:"relays"`
}

func newTypeInfo(t admin.Type) typeInfo {
	return typeInfo{newTypeStats(t.TypeStats), t.Paused, t.MaxRunning, t.Rate, seconds(t.RatePer), t.Relays}
}

func (a *app) typesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "types", Short: "list task types with their limits and relays", Args: cobra.NoArgs, Example: "  outbox types",
		Long: `Lists the task types that were ever enqueued, have a setting, or a handler in a relay that is alive. RELAYS is how many of those there are: with 0 nobody
runs its tasks.`,
		RunE: func(c *cobra.Command, _ []string) error {
			var found []admin.Type
			err := a.read(c.Context(), func(ctx context.Context, c *admin.Client) (err error) {
				found, err = c.Types(ctx)
				return err
			})
			if err != nil {
				return err
			}
			return a.out.print(page{"types": mapped(found, newTypeInfo)}, func() error {
				t := newTable("TYPE", "STATE", ">RELAYS", ">READY", ">SCHEDULED", ">DEAD", ">OLDEST", "LIMITS")
				for _, k := range found {
					t.add(k.Type, stateOf(k), k.Relays, k.Ready, k.Scheduled, k.Dead, a.oldest(k.OldestReady), limits(k))
				}
				return a.out.table(t)
			})
		},
	}
}

func stateOf(t admin.Type) string {
	switch {
	case t.Paused:
		return "paused"
	case t.Relays == 0:
		return "no relay"
	}
	return "on"
}

// limits are those of a type over all relays, in words.
func limits(t admin.Type) string {
	out := []string{}
	if t.MaxRunning > 0 {
		out = append(out, fmt.Sprintf("%d running", t.MaxRunning))
	}
	if t.Rate > 0 {
		per, named := map[time.Duration]string{time.Second: "s", time.Minute: "min", time.Hour: "h"}[t.RatePer]
		if !named {
			per = age(t.RatePer)
		}
		out = append(out, fmt.Sprintf("%d/%s", t.Rate, per))
	}
	return strings.Join(out, ", ")
}
