package main

import (
	"context"
	"database/sql"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox"
)

// typeStats is outbox.TypeStats in JSON.
type typeStats struct {
	Type        string  `json:"type"`
	Ready       int64   `json:"ready"`
	Scheduled   int64   `json:"scheduled"`
	Leased      int64   `json:"leased"`
	Waiting     int64   `json:"waiting"`
	Dead        int64   `json:"dead"`
	Finished    int64   `json:"finished"`
	Failed      int64   `json:"failed"`
	OldestReady float64 `json:"oldest_ready_seconds"`
	NextRunAt   stamp   `json:"next_run_at"`
}

func newTypeStats(s outbox.TypeStats) typeStats {
	return typeStats{s.Type, s.Ready, s.Scheduled, s.Leased, s.Waiting, s.Dead, s.Finished, s.Failed, seconds(s.OldestReady), stamp{s.NextRunAt}}
}

func (a *app) stats(ctx context.Context) (found []outbox.TypeStats, err error) {
	if err := a.connect(ctx); err != nil {
		return nil, err
	}
	err = a.look(ctx, func(ctx context.Context, tx *sql.Tx) error {
		found, err = outbox.Stats(ctx, tx, outbox.Schema(a.schema))
		return err
	})
	return found, err
}

func (a *app) statsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "stats", Short: "count the tasks of each type", Args: cobra.NoArgs, Example: "  outbox stats -json | jq '.types[] | select(.dead > 0)'",
		Long: `Counts the tasks of each type by their state, exactly, and at the same cost with ten tasks and with ten million. FINISHED and FAILED are since
the counters began; OLDEST is how long the task that is next has been due. What a Tx or Batch handler works on counts as ready.`,
		RunE: func(c *cobra.Command, _ []string) error {
			found, err := a.stats(c.Context())
			if err != nil {
				return err
			}
			return a.out.print(page{"types": mapped(found, newTypeStats)}, func() error {
				t := newTable("TYPE", ">READY", ">SCHEDULED", ">LEASED", ">WAITING", ">DEAD", ">FINISHED", ">FAILED", ">OLDEST", "NEXT")
				for _, s := range found {
					t.add(s.Type, s.Ready, s.Scheduled, s.Leased, s.Waiting, s.Dead, s.Finished, s.Failed, a.oldest(s.OldestReady), local(s.NextRunAt))
				}
				return a.out.table(t)
			})
		},
	}
}

// oldest is an age in a table; "" without one.
func (a *app) oldest(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return age(d)
}

// completeTypes offers the task types that there are.
func (a *app) completeTypes(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && c.Flags().Lookup("type") == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(c.Context(), 2*time.Second)
	defer cancel()
	found, err := a.stats(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names := []string{}
	for _, s := range found {
		if clean(s.Type) == s.Type { // others are no text for a shell
			names = append(names, s.Type)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// typeFlag adds --type, with its completion.
func (a *app) typeFlag(c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "type", "", "of this task type")
	_ = c.RegisterFlagCompletionFunc("type", a.completeTypes)
}
