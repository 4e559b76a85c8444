package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
)

func (a *app) statsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "stats", Short: "count the tasks of each type", Args: cobra.NoArgs,
		Example: "  outbox stats -json | jq '.types[] | select(.dead > 0)'",
		Long: `Counts the tasks of each type by their state, exactly, and at the same cost with ten tasks and with
ten million. FINISHED and FAILED are since the counters began; OLDEST is how long the task that is
next has been due. Tasks in Tx or Batch handlers count as ready.`,
		RunE: list(a, "types", func(_ *admin.Client, ctx context.Context) ([]outbox.TypeStats, error) {
			return outbox.Stats(ctx, a.db, outbox.Schema(a.schema))
		}, "TYPE >READY >SCHEDULED >LEASED >WAITING >DEAD >FINISHED >FAILED >OLDEST NEXT",
			func(s outbox.TypeStats) (any, []any) {
				return s, []any{
					s.Type, s.Ready, s.Scheduled, s.Leased, s.Waiting, s.Dead, s.Finished, s.Failed, s.OldestReady, s.NextRunAt,
				}
			}),
	}
}

func (a *app) typesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "types", Short: "list task types with their limits and relays", Args: cobra.NoArgs, Example: "  outbox types",
		Long: `Lists the task types that were ever enqueued, or have a setting or a handler in a living relay.
RELAYS is the number of living relays with a handler: with 0 no relay runs its tasks.`,
		RunE: list(a, "types", (*admin.Client).Types,
			"TYPE STATE >RELAYS >READY >SCHEDULED >DEAD >OLDEST LIMITS", func(t admin.Type) (any, []any) {
				return t, []any{t.Type, stateOf(t), t.Relays, t.Ready, t.Scheduled, t.Dead, t.OldestReady, limits(t)}
			}),
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
	var out []string
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
