package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

func (a *app) statsCommand() *cobra.Command {
	return list(a, &cobra.Command{
		Use: "stats", Short: "count the tasks of each type",
		Example: "  outbox stats -json | jq '.types[] | select(.dead > 0)'",
		Long: `Counts the tasks of each type by their state, exactly, and at the same cost with ten tasks and with
ten million. FINISHED, FAILED and EXPIRED are since the counters began, EXPIRED of tasks that
handlers.DiscardExpired removed; OLDEST is how long the task that is next has been due. Tasks in Tx
or Batch handlers count as ready.`,
	}, "types", func(_ *admin.Client, ctx context.Context) ([]outbox.TypeStats, error) {
		return outbox.Stats(ctx, a.db, outbox.Schema(a.schema))
	}, "TYPE >READY >SCHEDULED >RETRYING >LEASED >WAITING >DEAD >FINISHED >FAILED >EXPIRED >OLDEST NEXT",
		func(s outbox.TypeStats) []any {
			return []any{s.Type, s.Ready, s.Scheduled, s.Retrying, s.Leased, s.Waiting, s.Dead, s.Finished, s.Failed,
				s.Expired, s.OldestReady, s.NextRunAt}
		})
}

func (a *app) typesCommand() *cobra.Command {
	return list(a, &cobra.Command{
		Use: "types", Short: "list task types with their limits and relays", Example: "  outbox types",
		Long: `Lists the task types that were ever enqueued, or have a setting or a handler in a living relay.
RELAYS is the number of living relays with a handler: with 0 no relay runs its tasks. Of a type
that is failing more runs failed than tasks finished, within the last hour; outbox doctor has more.`,
	}, "types", (*admin.Client).Types, "TYPE STATE >RELAYS >READY >SCHEDULED >RETRYING >DEAD >OLDEST LIMITS",
		func(t admin.Type) []any {
			return []any{t.Type, stateOf(t), t.Relays, t.Ready, t.Scheduled, t.Retrying, t.Dead, t.OldestReady,
				limits(t)}
		})
}

func stateOf(t admin.Type) string {
	switch {
	case t.Paused:
		return "paused"
	case t.Relays == 0:
		return "no relay"
	case t.Failing != nil:
		return "failing"
	}
	return "on"
}

// limits are those of a type over all relays, in words.
func limits(t admin.Type) string {
	var out []string
	if t.MaxRunning > 0 {
		out = append(out, fmt.Sprintf("%d running", t.MaxRunning))
	}
	if t.MaxRunningPerKey > 0 {
		out = append(out, fmt.Sprintf("%d of a key", t.MaxRunningPerKey))
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

func (a *app) pauseCommand() *cobra.Command {
	return a.switchCommand(true, &cobra.Command{
		Use: "pause TYPE", Short: "start no tasks of a type, in all relays", Example: "  outbox pause SEND_MAIL",
		Long: "Stops all relays from starting tasks of the type, until it is resumed. Running tasks go on, " +
			"and tasks can be enqueued.",
	})
}

func (a *app) resumeCommand() *cobra.Command {
	return a.switchCommand(false, &cobra.Command{
		Use: "resume TYPE", Short: "start tasks of a paused type again", Example: "  outbox resume SEND_MAIL",
		Long: "Ends a pause. A type without a task, relay or pause is an error; a type that is not paused is none.",
	})
}

// switchCommand makes c one that pauses or resumes a type.
func (a *app) switchCommand(paused bool, c *cobra.Command) *cobra.Command {
	c.Args = cobra.ExactArgs(1)
	do, done := (*admin.Client).ResumeType, "resumed"
	if paused {
		do, done = (*admin.Client).PauseType, "paused"
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		name, known := args[0], false
		err := a.change(c.Context(), func(ctx context.Context, _ *sql.Tx, c *admin.Client) error {
			types, err := c.Types(ctx)
			if err != nil {
				return err
			}
			known = slices.ContainsFunc(types, func(t admin.Type) bool { return t.Type == name })
			err = do(c, ctx, name) // which checks the name
			if err == nil && !known && !paused {
				err = notFound("there is no task type %s: see outbox types", name) // and it is rolled back
			}
			return err
		})
		if err != nil {
			return err
		}
		if !known {
			fmt.Fprintf(a.err, "no task of type %s was ever enqueued, and no relay has a handler for it; "+
				"the pause is kept anyway\n",
				clean(name))
		}
		return a.out.print(object{{"type", name}, {"paused", paused}}, "type "+name+": "+done)
	}
	return c
}

func (a *app) schedulesCommand() *cobra.Command {
	c := list(a, &cobra.Command{
		Use: "schedules", Short: "list schedules; put, run-now, pause, resume or remove one",
		Example: "  outbox schedules\n  outbox schedules pause nightly-report",
		Long: `Lists the schedules of the relays' code, and those that are stored by outbox schedules put. A stored
one is new until a relay has seen it, and wrong if that cannot fire it.`,
	}, "schedules", (*admin.Client).Schedules, "NAME TYPE SPEC NEXT LAST STATE CATCH-UP ORIGIN",
		func(s admin.Schedule) []any {
			spec := s.Spec
			if s.TimeZone != "" {
				spec += " in " + s.TimeZone
			}
			return []any{s.Name, s.Type, spec, s.NextAt, s.LastAt, taskview.Schedule(s), s.CatchUp, taskview.Origin(s)}
		})
	do := (*admin.Client).RemoveSchedule
	c.AddCommand(a.asks(a.scheduleCommand(do, "removed", member{"removed", true}, &cobra.Command{
		Use: "remove NAME", Short: "remove a schedule",
		Example: "  outbox schedules remove nightly-report",
		Long: `Removes a schedule. The tasks that it has enqueued stay. A relay that has it in its configuration
adds it again within 10 s.`,
	})), a.scheduleCommand((*admin.Client).PauseSchedule, "paused", member{"paused", true}, &cobra.Command{
		Use: "pause NAME", Short: "skip a schedule's firings, until it is resumed",
		Example: "  outbox schedules pause nightly-report",
	}), a.schedulePutCommand(), a.scheduleCommand((*admin.Client).RunScheduleNow, "due now", member{"due", true},
		&cobra.Command{
			Use: "run-now NAME", Short: "let a schedule fire once more, now",
			Example: "  outbox schedules run-now nightly-report",
			Long: `Lets a schedule fire within 10 s, by a relay that has it. Its later firings stay as they are. One that is
paused is refused.`,
		}), a.scheduleCommand((*admin.Client).ResumeSchedule, "resumed", member{"paused", false}, &cobra.Command{
		Use: "resume NAME", Short: "let a schedule fire again", Example: "  outbox schedules resume nightly-report",
		Long: "Lets a schedule fire again. Skipped firings are not made up for.",
	}))
	return c
}

// schedulePutCommand stores a schedule. Of one that is stored it keeps what no flag names.
func (a *app) schedulePutCommand() *cobra.Command {
	var given admin.Schedule
	var payload, catchUp string
	c := &cobra.Command{
		Use: "put NAME", Short: "store a schedule, or change a stored one", Args: cobra.ExactArgs(1),
		Example: "  outbox schedules put nightly-report -type SEND_REPORT -spec '0 4 * * *' -zone Europe/Berlin\n" +
			"  outbox schedules put nightly-report -spec '0 5 * * *'",
		Long: `Stores a schedule. Within 10 s each relay with a relay.Config.ParseSchedule knows it: that function of the
app says which specs there are. What a relay finds wrong is in outbox schedules. Of a schedule that is stored
already it changes what the flags say, and keeps the rest. A name of the relays' code is refused. Try it by
outbox schedules run-now: type and payload are not compared with a handler.`,
		RunE: func(c *cobra.Command, args []string) error {
			name, set := args[0], c.Flags().Changed
			err := a.act(c.Context(), func(ctx context.Context, c *admin.Client) error {
				all, err := c.Schedules(ctx)
				if err != nil {
					return err
				}
				s := admin.Schedule{}
				if at := slices.IndexFunc(all, func(s admin.Schedule) bool { return s.Name == name && s.Stored }); at >= 0 {
					s = all[at]
				}
				for flag, take := range map[string]func(){
					"type": func() { s.Type = given.Type }, "spec": func() { s.Spec = given.Spec },
					"zone": func() { s.TimeZone = given.TimeZone }, "paused": func() { s.Paused = given.Paused },
					"catch-up": func() { s.CatchUp = outbox.CatchUp(catchUp) },
				} {
					if set(flag) {
						take()
					}
				}
				if s.Type == "" || s.Spec == "" {
					return usage("what and when? Say --type TYPE and --spec SPEC")
				}
				s.Name = name
				if !set("payload") {
					return c.PutSchedule(ctx, s, nil)
				}
				return c.PutSchedule(ctx, s, json.RawMessage(payload))
			})
			if err != nil {
				return err
			}
			return a.out.print(object{{"stored", true}, {"name", name}}, "schedule "+name+": stored")
		},
	}
	f := c.Flags()
	f.StringVar(&given.Type, "type", "", "type of its tasks")
	f.StringVar(&given.Spec, "spec", "", "when it fires, as the app's relay.Config.ParseSchedule understands it")
	f.StringVar(&given.TimeZone, "zone", "", "time zone of its times of day, like Europe/Berlin (UTC at first)")
	f.StringVar(&payload, "payload", "", "JSON of its tasks ({} at first)")
	f.StringVar(&catchUp, "catch-up", "", "missed firings: once (at first) or all")
	f.BoolVar(&given.Paused, "paused", false, "pause it; --paused=false resumes it")
	return c
}

// scheduleCommand makes c an action on a schedule. It asks before it removes one.
func (a *app) scheduleCommand(
	do func(*admin.Client, context.Context, string) error, done string, result member, c *cobra.Command,
) *cobra.Command {
	c.Args = cobra.ExactArgs(1)
	c.RunE = func(c *cobra.Command, args []string) error {
		name := args[0]
		if result.name == "removed" {
			if err := a.confirm(c.Context(), "Remove the schedule "+name+"?"); err != nil {
				return err
			}
		}
		err := a.act(c.Context(), func(ctx context.Context, c *admin.Client) error { return do(c, ctx, name) })
		if errors.Is(err, admin.ErrNotFound) {
			return notFound("there is no schedule %q; see outbox schedules", name)
		}
		if err != nil {
			return err
		}
		return a.out.print(object{result, {"name", name}}, "schedule "+name+": "+done)
	}
	return c
}

func (a *app) relaysCommand() *cobra.Command {
	c := list(a, &cobra.Command{
		Use: "relays", Short: "list relays and their runs; hand back the tasks of a dead relay",
		Example: "  outbox relays",
	}, "relays", (*admin.Client).Relays, "RELAY HOST >PID STATE >SEEN >UP >WORKERS >TASKS TYPES",
		func(r admin.Relay) []any {
			return []any{r.ID, r.Host, r.PID, relayState(r), since(r.LastSeen), since(r.StartedAt),
				workersOf(r), tasksOf(r), strings.Join(r.Types, " ")}
		})
	c.AddCommand(a.asks(&cobra.Command{
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
			if i >= 0 && found[i].Alive {
				question := fmt.Sprintf("The relay %s on %s is alive. Take all leased tasks from it?", id, found[i].Host)
				if err := a.confirm(c.Context(), question); err != nil {
					return err
				}
			}
			n, err := a.client.HandBack(c.Context(), id)
			if err != nil {
				return err
			}
			if n == 0 && i < 0 {
				return notFound("there is no relay %q, and no task that it holds; see outbox relays", id)
			}
			return a.out.print(object{{"relay_id", id}, {"handed_back", n}}, count(n, "task")+" handed back")
		},
	}))
	return c
}

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

func (a *app) auditCommand() *cobra.Command {
	return pages(a, &cobra.Command{
		Use: "audit", Short: "list actions by hand with their actors, the latest first",
		Example: "  outbox audit -limit 10",
		Long: `Lists the actions of this command and of the dashboard. An action in several transactions has an
entry for each; so has an action on more tasks than one entry can name. hand_back, reindex, repair
and grant_roles have an entry before them, with the count 0, and one after them: that ends in
": done", with the count of hand_back or repair, or in ": failed".`,
	}, "entries", func(ctx context.Context, c *admin.Client, p pageFlags) ([]admin.AuditEntry, string, error) {
		page, err := c.Audit(ctx, admin.AuditQuery{After: p.after, Limit: p.limit})
		return page.Entries, page.Next, err
	}, func(found []admin.AuditEntry) *table {
		return tableOf("AT ACTOR TOOL ACTION >COUNT TARGET", found, func(e admin.AuditEntry) []any {
			return []any{e.At, e.Actor, e.Tool, e.Action, e.Count, cut(e.Target, 80)}
		})
	})
}

// list makes c a command that prints a list under its name: an element is a JSON object and a row.
func list[T any](a *app, c *cobra.Command, name string,
	read func(*admin.Client, context.Context) ([]T, error), columns string,
	cells func(T) []any) *cobra.Command {
	c.Args = cobra.NoArgs
	c.RunE = func(c *cobra.Command, _ []string) error {
		found, err := get(c.Context(), a, read)
		if err != nil {
			return err
		}
		t := tableOf(columns, found, cells)
		return a.out.print(object{{name, t.json}}, t.lines()...)
	}
	return c
}

// pageFlags are the flags of a list that has pages.
type pageFlags struct {
	limit int
	after string
}

// pages makes c a list of which one page is printed, with the flag of the next page on stderr.
func pages[T any](a *app, c *cobra.Command, name string,
	read func(context.Context, *admin.Client, pageFlags) ([]T, string, error),
	rows func([]T) *table) *cobra.Command {
	var p pageFlags
	c.Flags().IntVar(&p.limit, "limit", 50, "the most rows, up to 1000")
	c.Flags().StringVar(&p.after, "after", "", "the next page: the place that the last page printed")
	c.Args = cobra.NoArgs
	c.RunE = func(c *cobra.Command, _ []string) error {
		if p.limit < 1 || p.limit > 1000 {
			return usage("--limit %d: must be between 1 and 1000", p.limit)
		}
		var next string
		found, err := get(c.Context(), a, func(c *admin.Client, ctx context.Context) (found []T, err error) {
			found, next, err = read(ctx, c, p)
			return found, err
		})
		if err != nil {
			return err
		}
		t, result := rows(found), object{{name, nil}, {"next", nil}}
		if result[0].value = t.json; next != "" {
			result[1].value = next
			if !a.out.json {
				defer fmt.Fprintf(a.err, "there may be more: -after %s\n", clean(next))
			}
		}
		return a.out.print(result, t.lines()...)
	}
	return c
}
