package admin_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// What the examples share.
var (
	must       = relaytest.Must
	runDue     = relaytest.RunDue
	enqueueAll = relaytest.EnqueueAll

	mail = outbox.NewTaskType[string]("SEND_MAIL")
)

// exampleClient is a database with a client, whose actions are noted if it has an actor.
func exampleClient(actor string) (db *sql.DB, client *admin.Client, drop func()) {
	db, drop = relaytest.ExampleDatabase()
	client, err := admin.New(db, admin.Config{Actor: actor, Tool: "backoffice"})
	must(err)
	return db, client, drop
}

func execute(db *sql.DB, query string) {
	_, err := db.Exec(query)
	must(err)
}

// die enqueues mail to the recipients and has its handler fail for good, once each, with the error.
func die(ctx context.Context, db *sql.DB, failure string, recipients ...string) {
	reg := handlers.New()
	handlers.Leased(reg, mail, func(context.Context, *outbox.Task[string]) error {
		return handlers.Dead(errors.New(failure))
	})
	for _, to := range recipients {
		enqueueAll(db, mail.New(to))
	}
	runDue(ctx, db, reg)
}

// deliver runs the mail that is due.
func deliver(ctx context.Context, db *sql.DB) {
	reg := handlers.New()
	handlers.Leased(reg, mail, func(_ context.Context, task *outbox.Task[string]) error {
		fmt.Printf("task %d: mail to %s in attempt %d\n", task.ID, task.Payload, task.Attempt)
		return nil
	})
	runDue(ctx, db, reg)
}

// Watch mail being delivered. The connection string is one for lib/pq.
func ExampleClient_Tail() {
	db, dsn, drop := relaytest.ExampleServer()
	defer drop()
	client, err := admin.New(db, admin.Config{})
	must(err)
	enqueueAll(db, mail.New("ada"))
	ctx, stop := context.WithCancel(context.Background())
	filter := admin.TailFilter{Types: []string{mail.Name()}}
	must(client.Tail(ctx, dsn, filter, func(e admin.TailEvent) error {
		switch e.Event {
		case admin.TailListening: // relays that are up tell within 3 s, those that start do at once
			fmt.Println("listening")
			go deliver(ctx, db)
		case string(relay.OutcomeDone):
			fmt.Println(e.Event, e.Type, e.TaskID, "in attempt", e.Attempt)
			stop()
		default:
			fmt.Println(e.Event, e.Type, e.TaskID)
		}
		return nil
	}))
	// Output:
	// listening
	// task 1: mail to ada in attempt 1
	// begun SEND_MAIL 1
	// done SEND_MAIL 1 in attempt 1
}

// What became of some mail, page by page.
func ExampleClient_Tasks() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	enqueueAll(db, mail.New("ada"), mail.New("bob"), mail.New("eve", outbox.After(time.Hour)))
	reg := handlers.New()
	handlers.Tx(reg, mail, func(_ context.Context, _ *sql.Tx, task *outbox.Task[string]) error {
		if task.Payload == "bob" {
			return handlers.RetryAfter(2*time.Hour, errors.New("451 try again later"))
		}
		return nil
	}, handlers.Retention(365*24*time.Hour)) // finished tasks are kept for a year
	runDue(ctx, db, reg)

	for _, state := range []admin.State{admin.StateScheduled, admin.StateFinished} {
		for q := (admin.TaskQuery{Filter: admin.Filter{Type: "SEND_MAIL", State: state}, Limit: 1}); ; {
			page, err := client.Tasks(ctx, q)
			must(err)
			for _, t := range page.Tasks {
				fmt.Printf("%s: task %d, attempt %d: %q\n", t.State, t.ID, t.Attempt, t.LastError)
			}
			if q.After = page.Next; q.After == "" {
				break
			}
		}
	}
	_, err := client.Task(ctx, 4)
	fmt.Println(err)
	// Output:
	// scheduled: task 3, attempt 0: ""
	// scheduled: task 2, attempt 0: "retry after 2h0m0s: 451 try again later"
	// finished: task 1, attempt 1: ""
	// admin: not found: task 4
}

// Which relays there are, and which tasks they run.
func ExampleClient_Relays() {
	ctx, stop := context.WithCancel(context.Background())
	db, client, drop := exampleClient("")
	defer drop()
	enqueueAll(db, mail.New("ada"))
	started, finish := make(chan struct{}), make(chan struct{})
	reg := handlers.New()
	handlers.Leased(reg, mail, func(context.Context, *outbox.Task[string]) error {
		close(started)
		<-finish
		return nil
	})
	r, err := relay.New(db, reg, relay.Config{Workers: 4, Logger: slog.New(slog.DiscardHandler)})
	must(err)
	stopped := make(chan error)
	go func() { stopped <- r.Run(ctx) }()
	<-started

	relays, err := client.Relays(ctx)
	must(err)
	for _, r := range relays {
		fmt.Printf("handlers for %q, %d workers, alive %t\n", r.Types, r.Workers, r.Alive)
		for _, run := range r.Runs {
			fmt.Printf("runs %s %d, lost %t\n", run.Type, run.TaskIDs, run.Lost)
		}
	}
	stop()
	close(finish)
	must(<-stopped)
	// Output:
	// handlers for ["SEND_MAIL"], 4 workers, alive true
	// runs SEND_MAIL [1], lost false
}

// What holds for each type, which schedules there are, and how the counts went.
func ExampleClient_Types() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	enqueueAll(db, mail.New("ada"), mail.New("bob"))
	must(client.PauseType(ctx, "SEND_MAIL"))
	execute(db, `INSERT INTO outbox.sample (at, task_type, ready, scheduled, leased, waiting, dead, finished, failed,
		oldest_ready) VALUES (now(), 'SEND_MAIL', 2, 0, 0, 0, 0, 7, 0, 0)`) // as a relay does each minute

	types, err := client.Types(ctx)
	must(err)
	for _, t := range types {
		fmt.Printf("%s: ready %d, paused %t, relays %d\n", t.Type, t.Ready, t.Paused, t.Relays)
	}
	samples, err := client.Samples(ctx, admin.SampleQuery{Type: "SEND_MAIL", Last: time.Hour})
	must(err)
	for _, s := range samples {
		fmt.Printf("ready %d, finished %d\n", s.Ready, s.Finished)
	}
	// Output:
	// SEND_MAIL: ready 2, paused true, relays 0
	// ready 2, finished 7
}

// Three causes hold, the first to mend first. Each has the command or the setting that changes it.
func ExampleClient_Why() {
	ctx := context.Background()
	db, client, drop := exampleClient("ada@example.com")
	defer drop()
	enqueueAll(db, mail.New("ada", outbox.After(time.Hour)))
	must(client.PauseType(ctx, "SEND_MAIL"))
	why, err := client.Why(ctx, 1)
	must(err)
	for _, c := range why.Causes {
		text, _, _ := strings.Cut(c.Text, " at 20") // without the time of the pause
		fmt.Printf("%s: %s (%s)\n", c.Kind, text, c.Remedy)
	}
	// Output:
	// no_relay: no relay is alive (start a relay (relay.Run))
	// paused: its type is paused, by ada@example.com (outbox resume SEND_MAIL)
	// scheduled: it is scheduled (outbox tasks run-now 1)
}

// Which errors are frequent, which dead letters have one of them, and the payload of each.
func ExampleClient_ErrorGroups() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	die(ctx, db, "no such recipient", "nobody")
	die(ctx, db, "mail.example.com: connection refused", "ada", "eve")

	refused := admin.Filter{State: admin.StateDead, Error: "refused"}
	groups, err := client.ErrorGroups(ctx, admin.TaskQuery{Filter: admin.Filter{State: admin.StateDead}})
	must(err)
	for _, g := range groups {
		fmt.Printf("%d × %s\n", g.Count, g.Error)
	}
	page, err := client.Tasks(ctx, admin.TaskQuery{Filter: refused, Limit: 50})
	must(err)
	for _, t := range page.Tasks {
		p, err := client.Payload(ctx, t.ID) // for those who may see it
		must(err)
		fmt.Printf("task %d, %s: %s: %s\n", t.ID, p.Payload, t.Reason, t.LastError)
	}
	// Output:
	// 2 × mail.example.com: connection refused
	// 1 × no such recipient
	// task 3, "eve": handler: mail.example.com: connection refused
	// task 2, "ada": handler: mail.example.com: connection refused
}

// After an outage of the mail server: run again what the outage killed, at most 100 a second.
func ExampleClient_Redrive() {
	ctx := context.Background()
	db, client, drop := exampleClient("ada@example.com")
	defer drop()
	die(ctx, db, "no such recipient", "nobody")
	die(ctx, db, "mail.example.com: connection refused", "ada", "eve")

	refused := admin.Filter{State: admin.StateDead, Type: "SEND_MAIL", Error: "connection refused"}
	found, err := client.Count(ctx, admin.TaskQuery{Filter: refused})
	must(err)
	done, err := client.Redrive(ctx, refused, admin.Bulk{PerSecond: 100})
	must(err)
	fmt.Println(found.Count, "were refused, redriven:", done.IDs)
	task, err := client.Task(ctx, 2)
	must(err)
	for _, e := range task.Timeline {
		fmt.Println(e.Kind, e.Error+e.Actor)
	}
	deliver(ctx, db)
	// Output:
	// 2 were refused, redriven: [2 3]
	// failed mail.example.com: connection refused
	// redriven ada@example.com
	// task 2: mail to ada in attempt 1
	// task 3: mail to eve in attempt 1
}

// One dead letter, together with the row that made it die.
func ExampleClient_In() {
	ctx := context.Background()
	db, client, drop := exampleClient("ada@example.com")
	defer drop()
	execute(db, `CREATE TABLE recipient (name text)`)
	die(ctx, db, "no such recipient", "eve")

	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO recipient VALUES ('eve')`); err != nil {
			return err
		}
		done, err := client.In(tx).Redrive(ctx, admin.Filter{IDs: []int64{1}}, admin.Bulk{})
		fmt.Println("redriven:", done.IDs)
		return err
	}))
	deliver(ctx, db)
	// Output:
	// redriven: [1]
	// task 1: mail to eve in attempt 1
}

// A customer has left: what waits for it is canceled, and what runs is asked to end.
func ExampleClient_Cancel() {
	ctx := context.Background()
	db, client, drop := exampleClient("ada@example.com")
	defer drop()
	type letter struct {
		UserID int    `json:"user_id"`
		Text   string `json:"text"`
	}
	for user := range 3 {
		enqueueAll(db, outbox.TaskSpec{Type: "SEND_LETTER", Payload: letter{user, "hello"}},
			outbox.TaskSpec{Type: "SEND_LETTER", Payload: letter{user, "later"},
				Options: []outbox.Option{outbox.After(time.Hour)}})
	}
	left := admin.Filter{Type: "SEND_LETTER", Payload: json.RawMessage(`{"user_id": 1}`)}
	found, err := client.Count(ctx, admin.TaskQuery{Filter: left})
	must(err)
	done, err := client.Cancel(ctx, left, admin.Bulk{})
	must(err)
	fmt.Println(found.Count, "match, canceled:", done.IDs, "asked to end:", done.Running)
	page, err := client.Audit(ctx, admin.AuditQuery{})
	must(err)
	fmt.Println(page.Entries[0].Action, page.Entries[0].Target)
	// Output:
	// 2 match, canceled: [3 4] asked to end: []
	// cancel tasks: type SEND_LETTER, with a payload
}

// The type was renamed in the code: what waits under the old name gets the new one, and is due in the
// morning at a low priority.
func ExampleClient_Retype() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	enqueueAll(db, outbox.TaskSpec{Type: "MAIL", Payload: "ada"}, outbox.TaskSpec{Type: "MAIL", Payload: "bob"})
	done, err := client.Retype(ctx, admin.Filter{Type: "MAIL"}, "SEND_MAIL", admin.Bulk{})
	fmt.Println("retyped:", done.IDs, err)
	done, err = client.SetPriority(ctx, admin.Filter{Type: "SEND_MAIL"}, 10, admin.Bulk{})
	fmt.Println("priority:", done.IDs, err)
	done, err = client.Reschedule(ctx, admin.Filter{IDs: []int64{2}}, time.Now().Add(8*time.Hour), admin.Bulk{})
	fmt.Println("rescheduled:", done.IDs, err)
	deliver(ctx, db)
	// Output:
	// retyped: [1 2] <nil>
	// priority: [1 2] <nil>
	// rescheduled: [2] <nil>
	// task 1: mail to ada in attempt 1
}

// The address was wrong: the dead letter gets the right one, and is sent.
func ExampleClient_SetPayload() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	die(ctx, db, "no such recipient", "adda")
	must(client.SetPayload(ctx, 1, "ada"))
	_, err := client.Redrive(ctx, admin.Filter{IDs: []int64{1}}, admin.Bulk{})
	must(err)
	deliver(ctx, db)
	fmt.Println(client.SetPayload(ctx, 1, "eve"))
	// Output:
	// task 1: mail to ada in attempt 1
	// admin: not found: task 1
}

func ExampleClient_Purge() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	die(ctx, db, "no such recipient", "nobody")
	purged, err := client.Purge(ctx, admin.Filter{Error: "no such recipient"}, admin.Bulk{})
	fmt.Println("purged:", purged.IDs, err)
	// Output: purged: [1] <nil>
}

func ExampleClient_PurgeFinished() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	execute(db, `INSERT INTO outbox.done_task (task_id, task_type, payload, run_at, created_at,
		finished_at, keep_until, priority, attempt)
		SELECT i, 'SEND_MAIL', jsonb_build_object('user_id', 6 + i), now(), now(), now(), now() + interval '1 day', 0, 1
		  FROM generate_series(1, 2) AS i`)
	ofUser := admin.Filter{Payload: json.RawMessage(`{"user_id": 7}`)}
	purged, err := client.PurgeFinished(ctx, ofUser, admin.Bulk{})
	fmt.Println("purged:", purged.IDs, err)
	// Output: purged: [1] <nil>
}

func ExampleClient_HandBack() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	const dead = "5f3a2c1e-0000-4000-8000-000000000000" // as in outbox.relay
	execute(db, `INSERT INTO outbox.task (task_type, payload, state, attempt, relay_id, lease_token)
		VALUES ('MAKE_REPORT', '12', 'leased', 1, '`+dead+`', gen_random_uuid())`)

	tasks, err := client.HandBack(ctx, dead)
	fmt.Println("handed back:", tasks, err)

	reg := handlers.New()
	report := outbox.NewTaskType[int]("MAKE_REPORT")
	handlers.Leased(reg, report, func(ctx context.Context, task *outbox.Task[int]) error {
		fmt.Println("attempt", task.Attempt)
		return nil
	})
	runDue(ctx, db, reg)
	// Output:
	// handed back: 1 <nil>
	// attempt 2
}

// After a day of bloat: small indexes again, while relays go on.
func ExampleClient_Reindex() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	execute(db, `INSERT INTO outbox.task (task_type, payload) SELECT 'RESIZE_IMAGE', '1' FROM generate_series(1, 10000)`)
	execute(db, `DELETE FROM outbox.task`)
	execute(db, `VACUUM outbox.task`) // as autovacuum does; it leaves the indexes large
	all, err := client.Reindex(ctx)
	must(err)
	for _, i := range all {
		if i.Name == "task_pkey" {
			fmt.Println(i.Table, i.Name, "is smaller:", i.BytesAfter < i.BytesBefore)
		}
	}
	// Output: task task_pkey is smaller: true
}

// No relay starts a task of a paused type, whichever process paused it.
func ExampleClient_PauseType() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	resize := outbox.NewTaskType[int]("RESIZE_IMAGE")
	reg := handlers.New()
	handlers.Tx(reg, resize, func(_ context.Context, _ *sql.Tx, task *outbox.Task[int]) error {
		fmt.Println("resize", task.Payload)
		return nil
	})
	must(client.PauseType(ctx, resize.Name()))
	enqueueAll(db, resize.New(1))
	runDue(ctx, db, reg)
	fmt.Println("paused")
	must(client.ResumeType(ctx, resize.Name()))
	runDue(ctx, db, reg)
	// Output:
	// paused
	// resize 1
}

// After a restore that brought the tasks without the counts, and no sequence.
func ExampleClient_Repair() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	execute(db, `INSERT INTO outbox.task (task_type, state, unique_key)
		VALUES ('MAKE_REPORT', 'scheduled', 'may')`)
	execute(db, `DELETE FROM outbox.counter_log`)
	found, err := client.Defects(ctx, admin.RepairOptions{})
	must(err)
	for _, d := range found {
		fmt.Println(d.Kind, d.Subject, d.Is, "should be", d.ShouldBe)
	}
	_, err = client.Repair(ctx, admin.RepairOptions{})
	must(err)
	found, err = client.Defects(ctx, admin.RepairOptions{})
	fmt.Println(len(found), "are left", err)
	// Output:
	// count MAKE_REPORT scheduled 0 should be 1
	// unique_key MAKE_REPORT: tasks without their key 1 should be 0
	// 0 are left <nil>
}

// Staging has a dump of production's database: relays run nothing in it until it is adopted, here
// without the tasks that came along.
func ExampleClient_Adopt() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	execute(db, `INSERT INTO outbox.task (task_type) VALUES ('SEND_WELCOME'), ('SEND_WELCOME')`)
	execute(db, `UPDATE outbox.origin SET database_name = 'shop', database_oid = 1, table_oid = 1`) // as the dump has it
	of, err := client.Origin(ctx)
	must(err)
	fmt.Println("a copy:", of.Copy, "of", of.Name)
	adopted, err := client.Adopt(ctx, admin.AdoptOptions{Discard: true})
	must(err)
	fmt.Println("tasks discarded:", adopted.Tasks)
	of, err = client.Origin(ctx)
	fmt.Println("a copy:", of.Copy, err)
	// Output:
	// a copy: true of shop
	// tasks discarded: 2
	// a copy: false <nil>
}

// A tool of an app's own cancels a task, and changes a row of its own: the audit log says by whom, in
// the same transactions.
func ExampleClient_WriteAudit() {
	ctx := context.Background()
	db, client, drop := exampleClient("ada@example.com")
	defer drop()
	execute(db, `CREATE TABLE invoice (invoice_id bigint, paid bool)`)
	enqueueAll(db, outbox.TaskSpec{Type: "SEND_INVOICE", Payload: 17})

	_, err := client.Cancel(ctx, admin.Filter{IDs: []int64{1}}, admin.Bulk{}) // writes an entry
	must(err)
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error { // an action of the app's own
		if _, err := tx.ExecContext(ctx, `UPDATE invoice SET paid = true WHERE invoice_id = 17`); err != nil {
			return err
		}
		_, err := client.In(tx).WriteAudit(ctx, admin.AuditEntry{Action: "mark_paid", Target: "invoice 17"})
		return err
	}))

	page, err := client.Audit(ctx, admin.AuditQuery{Limit: 10})
	must(err)
	for _, e := range page.Entries {
		fmt.Printf("%s: %s, %s of %s, %d task\n", e.Tool, e.Actor, e.Action, e.Target, e.Count)
	}
	// Output:
	// backoffice: ada@example.com, mark_paid of invoice 17, 0 task
	// backoffice: ada@example.com, cancel of task 1, 1 task
}

// A report is wanted each Monday, and no deploy is at hand.
func ExampleClient_PutSchedule() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	reg := handlers.New()
	handlers.Leased(reg, outbox.NewTaskType[string]("SEND_REPORT"), func(_ context.Context,
		task *outbox.Task[string]) error {
		fmt.Println("report to", task.Payload)
		return nil
	})
	fire := func() { // an app calls Run
		r, err := relay.New(db, reg, relay.Config{Logger: slog.New(slog.DiscardHandler),
			ParseSchedule: func(spec string) relay.Timing { return relay.Cron(cron.ParseStandard, spec) }})
		must(err)
		must(r.RunOnce(ctx))
	}
	must(client.PutSchedule(ctx, admin.Schedule{Name: "mondays", Type: "SEND_REPORT", Spec: "0 9 * * 1",
		TimeZone: "Europe/Berlin"}, "ada"))
	must(client.PutSchedule(ctx, admin.Schedule{Name: "never", Type: "SEND_REPORT", Spec: "often"}, "ada"))
	fire()
	must(client.RunScheduleNow(ctx, "mondays"))
	fire()
	all, err := client.Schedules(ctx)
	must(err)
	fmt.Println(all[0].Name, "fires on a", all[0].NextAt.Weekday())
	fmt.Println(all[1].Name, "is wrong:", all[1].Wrong)
	err = client.PutSchedule(ctx, admin.Schedule{Name: "a", Type: "SEND_REPORT", Spec: "0 9 * * *",
		TimeZone: "Berlin"}, nil)
	fmt.Println(err)
	// Output:
	// report to ada
	// mondays fires on a Monday
	// never is wrong: Cron: "often": expected exactly 5 fields, found 1: [often]
	// outbox: invalid option: TimeZone: "Berlin" is no time zone such as Europe/Berlin
}
