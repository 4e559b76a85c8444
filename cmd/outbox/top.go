package main

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
	"golang.org/x/term"
)

// view is the state of the outbox at one time, for top.
type view struct {
	at     time.Time
	types  []topType
	relays []admin.Relay
}

// topType is a type with its changes since the view before.
type topType struct {
	admin.Type
	running  int     // tasks in runs that are not lost
	done     float64 // finished and failed a second; negative: unknown
	failures float64
}

// topOrders are the orders of types: the most first, and equals by name.
var topOrders = map[string]func(t topType) float64{
	"ready":   func(t topType) float64 { return float64(t.Ready) },
	"running": func(t topType) float64 { return float64(t.running) },
	"done":    func(t topType) float64 { return t.done },
	"failed":  func(t topType) float64 { return t.failures },
	"dead":    func(t topType) float64 { return float64(t.Dead) },
	"oldest":  func(t topType) float64 { return float64(t.OldestReady) },
	"type":    func(topType) float64 { return 0 },
}

func (a *app) topCommand() *cobra.Command {
	var every time.Duration
	var order string
	orders := strings.Join(slices.Sorted(maps.Keys(topOrders)), ", ")
	c := &cobra.Command{
		Use: "top", Short: "watch types and relays at work", Args: cobra.NoArgs,
		Example: "  outbox top -every 5s -sort oldest",
		Long: `Shows the types with their rates, and the relays with their runs, each second, until ctrl-C. If stdout
is no terminal, and with --json, it prints once, without rates. RUN counts the tasks in the journal
of runs; DONE/S and FAIL/S are since the update before.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond {
				return usage("--every %v: at least 100ms", every)
			}
			if topOrders[order] == nil {
				return usage("--sort %q: use %s", order, orders)
			}
			if err := a.connect(c.Context()); err != nil {
				return err
			}
			first, err := a.view(c.Context(), &view{})
			if err != nil {
				return err
			}
			if out, ok := isTerminal(a.out.w); ok && !a.out.json {
				return a.watch(c.Context(), out, first, every, order)
			}
			return a.out.print(topJSON(first), first.lines(order, 120, 1<<30)...)
		},
	}
	c.Flags().DurationVar(&every, "every", time.Second, "the time between two updates")
	c.Flags().StringVar(&order, "sort", "ready", "order of the types: "+orders)
	return c
}

func topJSON(v *view) object {
	types := []object{}
	for _, t := range v.types {
		types = append(types, append(objectOf(t.Type), member{"running", t.running}))
	}
	return object{{"at", v.at}, {"types", types}, {"relays", v.relays}}
}

// view reads the state, and computes the rates since the view before.
func (a *app) view(ctx context.Context, before *view) (*view, error) {
	v := &view{}
	var types []admin.Type
	err := a.look(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		c := a.client.In(tx)
		if types, err = c.Types(ctx); err != nil {
			return err
		}
		v.at = time.Now()
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
				running[run.Type] += len(run.TaskIDs)
			}
		}
	}
	passed := v.at.Sub(before.at).Seconds()
	for _, of := range types {
		t := topType{Type: of, running: running[of.Type], done: -1, failures: -1}
		for _, b := range before.types {
			if b.Type.Type == of.Type && passed > 0 {
				t.done, t.failures = float64(max(t.Finished-b.Finished, 0))/passed, float64(max(t.Failed-b.Failed, 0))/passed
			}
		}
		v.types = append(v.types, t)
	}
	return v, nil
}

// lines are the view as text of the given width and height.
func (v *view) lines(order string, width, height int) []string {
	by := topOrders[order]
	slices.SortStableFunc(v.types, func(x, y topType) int {
		return cmp.Or(-cmp.Compare(by(x), by(y)), strings.Compare(x.Type.Type, y.Type.Type))
	})
	ready, dead, alive := int64(0), int64(0), 0
	for _, t := range v.types {
		ready, dead = ready+t.Ready, dead+t.Dead
	}
	for _, r := range v.relays {
		if r.Alive {
			alive++
		}
	}
	head := fmt.Sprintf("%s ready, %s, %s alive, %s",
		grouped(ready), count(dead, "dead letter"), count(alive, "relay"), v.at.Format("15:04:05"))
	types, relays := v.typeTable(width).lines(), v.relayTable().lines()
	room := max(height-4-min(len(relays), max(height/3, 4)), 1)
	if hidden := len(types) - 1 - room; hidden > 0 {
		types = append(types[:room], count(hidden+1, "more type"))
	}
	out := slices.Concat([]string{head, ""}, types, []string{""}, relays)
	out = out[:min(len(out), height)]
	for i := range out {
		out[i] = cut(out[i], width)
	}
	return out
}

// typeTable has names that leave room for the numbers.
func (v *view) typeTable(width int) *table {
	const numbers = 77
	t := newTable("TYPE >READY >SCHED >RETRY >RUN >WAIT >DEAD >DONE/S >FAIL/S >OLDEST")
	for _, k := range v.types {
		state := ""
		if s := stateOf(k.Type); s != "on" {
			state = " (" + s + ")"
		}
		name := cut(k.Type.Type, max(width-numbers-len(state), 8)) + state
		t.add(nil, name, k.Ready, k.Scheduled, k.Retrying, k.running, k.Waiting, k.Dead,
			rate(k.done), rate(k.failures), k.OldestReady)
	}
	return t
}

func (v *view) relayTable() *table {
	t := newTable("RELAY HOST >PID >UP >WORKERS >TASKS RUNS")
	for _, r := range v.relays {
		up := relayState(r)
		if up == "alive" {
			up = since(r.StartedAt)
		}
		t.add(nil, fmt.Sprintf("%.8s", r.ID), cut(r.Host, 16), r.PID, up, workersOf(r), tasksOf(r), runsText(r))
	}
	return t
}

// runsText has the types of a relay's runs, each with the number of tasks and the age of the oldest run.
func runsText(r admin.Relay) string {
	var out []string
	for _, of := range taskview.RunsByType(r) {
		out = append(out, fmt.Sprintf("%d %s %s", of.Tasks, cut(cmp.Or(of.Type, "?"), 15), since(of.Oldest.StartedAt)))
	}
	return strings.Join(out, ", ")
}

// rate is a number a second; "" if it is unknown.
func rate(perSecond float64) string {
	switch {
	case perSecond < 0:
		return ""
	case perSecond > 0 && perSecond < 9.95:
		return fmt.Sprintf("%.1f", perSecond)
	}
	return fmt.Sprintf("%.0f", perSecond)
}

// The alternate screen, without a cursor and without lines that go on in the next one; and back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// watch shows one view after the other on a terminal, until ctx ends. It shows errors, and goes on.
func (a *app) watch(ctx context.Context, out *os.File, v *view, every time.Duration, order string) error {
	if _, err := io.WriteString(out, enterScreen); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(out, leaveScreen) }()
	tick := time.NewTicker(every)
	defer tick.Stop()
	status := "ctrl-C ends"
	for {
		width, height, err := term.GetSize(int(out.Fd()))
		if err != nil || width < 20 || height < 5 {
			width, height = 80, 24
		}
		lines := append(v.lines(order, width, height-2), "", cut(clean(status), width))
		if _, err := fmt.Fprintf(out, "\x1b[H%s\x1b[K\x1b[J", strings.Join(lines, "\x1b[K\n")); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		next, err := a.view(ctx, v)
		if err != nil {
			status = a.explain(ctx, err)
			continue
		}
		v, status = next, "ctrl-C ends"
	}
}
