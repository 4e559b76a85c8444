package main

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

// view is one look at the outbox, for top.
type view struct {
	at     time.Time
	types  []topType
	relays []admin.Relay
}

// topType is a type with what changed since the look before.
type topType struct {
	admin.Type
	running  int     // tasks in runs that are not lost
	done     float64 // finished and failed a second; negative: not known yet
	failures float64
}

// topOrders are the orders of types; the key s goes from one to the next.
var topOrders = []string{"ready", "running", "done", "failed", "dead", "oldest", "type"}

func (a *app) topCommand() *cobra.Command {
	var every time.Duration
	var order string
	c := &cobra.Command{
		Use: "top", Short: "watch types and relays at work", Args: cobra.NoArgs, Example: "  outbox top -every 5s -sort oldest",
		Long: `Shows the types with their rates, and the relays with what they run, anew each second. Keys: s another order, q the end. Where stdout is no
terminal, or with --json, it prints one look without rates. RUN counts tasks whose runs are noted; DONE/S and FAIL/S are since the look before.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond {
				return usage("--every %v: at least 100ms", every)
			}
			if !slices.Contains(topOrders, order) {
				return usage("--sort %q: use %s", order, strings.Join(topOrders, ", "))
			}
			if err := a.connect(c.Context()); err != nil {
				return err
			}
			first, err := a.view(c.Context(), nil)
			if err != nil {
				return err
			}
			if screen, ok := a.screen(); ok && !a.out.json {
				return a.watch(c.Context(), screen, first, every, order)
			}
			return a.out.print(topJSON(first), func() error {
				_, err := fmt.Fprintln(a.out.w, strings.Join(first.lines(order, 120, 1<<30, a.out.now()), "\n"))
				return err
			})
		},
	}
	c.Flags().DurationVar(&every, "every", time.Second, "time between two looks")
	c.Flags().StringVar(&order, "sort", "ready", "order of the types: "+strings.Join(topOrders, ", "))
	_ = c.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(topOrders, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func topJSON(v *view) page {
	types := []any{}
	for _, t := range v.types {
		types = append(types, struct {
			typeInfo
			Running int `json:"running"`
		}{newTypeInfo(t.Type), t.running})
	}
	return page{"at": stamp{v.at}, "types": types, "relays": mapped(v.relays, newRelay)}
}

// view looks, and computes the rates since the look before.
func (a *app) view(ctx context.Context, before *view) (*view, error) {
	v := &view{}
	err := a.look(ctx, func(ctx context.Context, tx *sql.Tx) error {
		c := a.client.In(tx)
		types, err := c.Types(ctx)
		if err != nil {
			return err
		}
		v.at = time.Now()
		for _, t := range types {
			v.types = append(v.types, topType{Type: t, done: -1, failures: -1})
		}
		v.relays, err = c.Relays(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	running := map[string]int{}
	for _, r := range v.relays {
		for _, run := range r.Runs {
			if !run.Lost {
				running[run.Type] += max(len(run.TaskIDs), 1)
			}
		}
	}
	for i := range v.types {
		t := &v.types[i]
		t.running = running[t.Type.Type]
		if before == nil {
			continue
		}
		passed := v.at.Sub(before.at).Seconds()
		for _, b := range before.types {
			if b.Type.Type == t.Type.Type && passed > 0 {
				t.done, t.failures = float64(max(t.Finished-b.Finished, 0))/passed, float64(max(t.Failed-b.Failed, 0))/passed
			}
		}
	}
	return v, nil
}

// sort puts the types in order: the most first.
func (v *view) sort(order string) {
	by := map[string]func(t topType) float64{
		"ready":   func(t topType) float64 { return float64(t.Ready) },
		"running": func(t topType) float64 { return float64(t.running) },
		"done":    func(t topType) float64 { return t.done },
		"failed":  func(t topType) float64 { return t.failures },
		"dead":    func(t topType) float64 { return float64(t.Dead) },
		"oldest":  func(t topType) float64 { return float64(t.OldestReady) },
		"type":    func(topType) float64 { return 0 },
	}[order]
	slices.SortStableFunc(v.types, func(x, y topType) int {
		return cmp.Or(-cmp.Compare(by(x), by(y)), strings.Compare(x.Type.Type, y.Type.Type))
	})
}

// lines are the view as text of the given width and height.
func (v *view) lines(order string, width, height int, now time.Time) []string {
	v.sort(order)
	ready, dead, alive := int64(0), int64(0), 0
	for _, t := range v.types {
		ready, dead = ready+t.Ready, dead+t.Dead
	}
	for _, r := range v.relays {
		if r.Alive {
			alive++
		}
	}
	out := []string{fmt.Sprintf("%s ready, %s, %s alive, %s", grouped(ready), count(dead, "dead letter"), count(int64(alive), "relay"), v.at.Format("15:04:05")), ""}
	relays := v.relayLines(width, now)
	room := max(height-len(out)-2-min(len(relays), max(height/3, 4)), 1)
	types := v.typeLines(width)
	if hidden := len(types) - 1 - room; hidden > 0 {
		types = append(types[:room], count(int64(hidden+1), "more type"))
	}
	out = append(append(append(out, types...), ""), relays...)
	if len(out) > height {
		out = out[:height]
	}
	for i := range out {
		out[i] = cut(out[i], width)
	}
	return out
}

func (v *view) typeLines(width int) []string {
	const numbers = " %6s %6s %5s %6s %6s %7s %7s %7s"
	wide := max(width-len(fmt.Sprintf(numbers, "", "", "", "", "", "", "", "")), 8)
	row := func(name string, cells ...any) string {
		return fmt.Sprintf("%-*s", wide, cut(clean(name), wide)) + fmt.Sprintf(numbers, cells...)
	}
	out := []string{row("TYPE", "READY", "SCHED", "RUN", "WAIT", "DEAD", "DONE/S", "FAIL/S", "OLDEST")}
	for _, t := range v.types {
		name := t.Type.Type
		if state := stateOf(t.Type); state != "on" {
			name = cut(name, max(wide-len(state)-3, 8)) + " (" + state + ")"
		}
		oldest := "-"
		if t.OldestReady > 0 {
			oldest = age(t.OldestReady)
		}
		out = append(out, row(name, short(t.Ready), short(t.Scheduled), short(int64(t.running)), short(t.Waiting), short(t.Dead), rate(t.done), rate(t.failures), oldest))
	}
	return out
}

func (v *view) relayLines(width int, now time.Time) []string {
	out := []string{fmt.Sprintf("%-8s %-16s %7s %7s %7s %5s  %s", "RELAY", "HOST", "PID", "UP", "WORKERS", "TASKS", "RUNS")}
	for _, r := range v.relays {
		workers, up := "-", age(now.Sub(r.StartedAt))
		if r.Workers > 0 {
			workers = fmt.Sprint(r.Workers)
		}
		if !r.Alive {
			up = "dead"
		}
		out = append(out, fmt.Sprintf("%-8s %-16s %7d %7s %7s %5d  %s", r.RelayID[:min(8, len(r.RelayID))], cut(clean(r.Host), 16), r.PID, up, workers, tasksOf(r), clean(runsText(r, now))))
	}
	return out
}

// runsText says what a relay runs: each type with the number of its tasks and the age of the oldest run.
func runsText(r admin.Relay, now time.Time) string {
	type sum struct {
		tasks int
		since time.Time
	}
	sums := map[string]sum{}
	names := []string{}
	for _, run := range r.Runs {
		s, found := sums[run.Type]
		if !found {
			names = append(names, run.Type)
		}
		s.tasks += max(len(run.TaskIDs), 1)
		if s.since.IsZero() || run.StartedAt.Before(s.since) {
			s.since = run.StartedAt
		}
		sums[run.Type] = s
	}
	slices.SortFunc(names, func(x, y string) int {
		return cmp.Or(-cmp.Compare(sums[x].tasks, sums[y].tasks), strings.Compare(x, y))
	})
	out := []string{}
	for _, name := range names {
		out = append(out, fmt.Sprintf("%d %s %s", sums[name].tasks, cut(cmp.Or(name, "?"), 15), age(now.Sub(sums[name].since))))
	}
	return strings.Join(out, ", ")
}

// short is a number in six characters.
func short(n int64) string {
	switch {
	case n < 100_000:
		return fmt.Sprint(n)
	case n < 10_000_000:
		return fmt.Sprintf("%dk", n/1000)
	}
	return fmt.Sprintf("%dM", n/1_000_000)
}

func rate(perSecond float64) string {
	switch {
	case perSecond < 0:
		return "-"
	case perSecond > 0 && perSecond < 9.95:
		return fmt.Sprintf("%.1f", perSecond)
	}
	return short(int64(perSecond + 0.5))
}
