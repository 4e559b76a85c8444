package admin_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// example calls f with a client of a database, in which two mails wait and a third one is a dead letter.
func example(f func(ctx context.Context, db *sql.DB, client *admin.Client)) {
	ctx := context.Background()
	db, client, drop := exampleClient("ada@example.com")
	defer drop()
	die(ctx, db, "no such recipient", "nobody")
	enqueueAll(db, mail.New("ada", outbox.After(time.Hour)), mail.New("eve", outbox.After(time.Hour)))
	f(ctx, db, client)
}

// A client for the tools of a back office; the audit log has its actions under the name.
func ExampleNew() {
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	_, err := admin.New(db, admin.Config{Actor: "ada@example.com", Tool: "backoffice"})
	fmt.Println(err)
	// Output: <nil>
}

// All about one task, in whichever table it is.
func ExampleClient_Task() {
	example(func(ctx context.Context, _ *sql.DB, client *admin.Client) {
		task, err := client.Task(ctx, 1)
		fmt.Println(task.State, task.Type, task.LastError, err)
	})
	// Output: dead SEND_MAIL no such recipient <nil>
}

// A consumer reports the id of an event, which is the key of its task.
func ExampleClient_TaskByKey() {
	example(func(ctx context.Context, db *sql.DB, client *admin.Client) {
		known, err := client.Task(ctx, 1)
		must(err)
		task, err := client.TaskByKey(ctx, known.Key)
		fmt.Println(task.ID, task.State, err)
	})
	// Output: 1 dead <nil>
}

// The payload, for those who may see it.
func ExampleClient_Payload() {
	example(func(ctx context.Context, _ *sql.DB, client *admin.Client) {
		p, err := client.Payload(ctx, 1)
		fmt.Println(string(p.Payload), err)
	})
	// Output: "nobody" <nil>
}

// The payload of a task whose type has an outbox.Codec is shown as it is stored.
func ExamplePayload_Codec() {
	p := admin.Payload{
		Payload: json.RawMessage(`"3q2+7w=="`),
		Headers: json.RawMessage(`{"outbox-codec": "aes-gcm-2026-05"}`),
	}
	fmt.Println(p.Codec())
	// Output: aes-gcm-2026-05
}

// How many tasks an action would take.
func ExampleClient_Count() {
	example(func(ctx context.Context, _ *sql.DB, client *admin.Client) {
		n, err := client.Count(ctx, admin.TaskQuery{Filter: admin.Filter{Type: "SEND_MAIL", State: admin.StateScheduled}})
		fmt.Println(n.Count, err)
	})
	// Output: 2 <nil>
}

// What waits is sent now.
func ExampleClient_RunNow() {
	example(func(ctx context.Context, db *sql.DB, client *admin.Client) {
		done, err := client.RunNow(ctx, admin.Filter{Type: "SEND_MAIL"}, admin.Bulk{})
		fmt.Println(done.IDs, err)
		deliver(ctx, db)
	})
	// Output:
	// [2 3] <nil>
	// task 2: mail to ada in attempt 1
	// task 3: mail to eve in attempt 1
}

// What waits is sent tomorrow.
func ExampleClient_Reschedule() {
	example(func(ctx context.Context, _ *sql.DB, client *admin.Client) {
		done, err := client.Reschedule(ctx, admin.Filter{Type: "SEND_MAIL"}, time.Now().Add(24*time.Hour), admin.Bulk{})
		fmt.Println(done.IDs, err)
	})
	// Output: [2 3] <nil>
}

// What waits runs after all else.
func ExampleClient_SetPriority() {
	example(func(ctx context.Context, _ *sql.DB, client *admin.Client) {
		done, err := client.SetPriority(ctx, admin.Filter{Type: "SEND_MAIL"}, 100, admin.Bulk{})
		fmt.Println(done.IDs, err)
	})
	// Output: [2 3] <nil>
}

// Relays start tasks of the type again.
func ExampleClient_ResumeType() {
	example(func(ctx context.Context, _ *sql.DB, client *admin.Client) {
		must(client.PauseType(ctx, "SEND_MAIL"))
		must(client.ResumeType(ctx, "SEND_MAIL"))
		types, err := client.Types(ctx)
		fmt.Println(types[0].Type, "paused:", types[0].Paused, err)
	})
	// Output: SEND_MAIL paused: false <nil>
}

// Who has done what, the latest first.
func ExampleClient_Audit() {
	example(func(ctx context.Context, _ *sql.DB, client *admin.Client) {
		must(client.PauseType(ctx, "SEND_MAIL"))
		page, err := client.Audit(ctx, admin.AuditQuery{Limit: 10})
		must(err)
		for _, e := range page.Entries {
			fmt.Println(e.Tool, e.Actor, e.Action, e.Target)
		}
	})
	// Output: backoffice ada@example.com pause SEND_MAIL
}

// How many tasks there were, as relays note it each minute.
func ExampleClient_Samples() {
	example(func(ctx context.Context, _ *sql.DB, client *admin.Client) {
		samples, err := client.Samples(ctx, admin.SampleQuery{Type: "SEND_MAIL", Last: time.Hour})
		fmt.Println(len(samples), err)
	})
	// Output: 0 <nil>
}

// Whether the database is a copy, in which relays run nothing.
func ExampleClient_Origin() {
	example(func(ctx context.Context, _ *sql.DB, client *admin.Client) {
		origin, err := client.Origin(ctx)
		fmt.Println("a copy:", origin.Copy, err)
	})
	// Output: a copy: false <nil>
}

// What Repair would mend.
func ExampleClient_Defects() {
	example(func(ctx context.Context, _ *sql.DB, client *admin.Client) {
		found, err := client.Defects(ctx, admin.RepairOptions{})
		fmt.Println(len(found), err)
	})
	// Output: 0 <nil>
}

// scheduled calls f with a client of a database that has a schedule.
func scheduled(f func(ctx context.Context, client *admin.Client)) {
	ctx := context.Background()
	_, client, drop := exampleClient("")
	defer drop()
	must(client.PutSchedule(ctx, admin.Schedule{Name: "mondays", Type: "SEND_REPORT", Spec: "0 9 * * 1"}, nil))
	f(ctx, client)
}

// The schedules that operators have stored, and those of relays.
func ExampleClient_Schedules() {
	scheduled(func(ctx context.Context, client *admin.Client) {
		all, err := client.Schedules(ctx)
		fmt.Println(all[0].Name, all[0].Type, all[0].Spec, err)
	})
	// Output: mondays SEND_REPORT 0 9 * * 1 <nil>
}

// No report in the holidays.
func ExampleClient_PauseSchedule() {
	scheduled(func(ctx context.Context, client *admin.Client) {
		must(client.PauseSchedule(ctx, "mondays"))
		all, err := client.Schedules(ctx)
		fmt.Println("paused:", all[0].Paused, err)
	})
	// Output: paused: true <nil>
}

// The holidays are over.
func ExampleClient_ResumeSchedule() {
	scheduled(func(ctx context.Context, client *admin.Client) {
		must(client.PauseSchedule(ctx, "mondays"))
		must(client.ResumeSchedule(ctx, "mondays"))
		all, err := client.Schedules(ctx)
		fmt.Println("paused:", all[0].Paused, err)
	})
	// Output: paused: false <nil>
}

// The next relay that looks fires it, and the times of the schedule stay.
func ExampleClient_RunScheduleNow() {
	scheduled(func(ctx context.Context, client *admin.Client) {
		fmt.Println(client.RunScheduleNow(ctx, "mondays"))
		fmt.Println(client.RunScheduleNow(ctx, "tuesdays"))
	})
	// Output:
	// <nil>
	// admin: not found: schedule "tuesdays"
}

// No report any more.
func ExampleClient_RemoveSchedule() {
	scheduled(func(ctx context.Context, client *admin.Client) {
		must(client.RemoveSchedule(ctx, "mondays"))
		all, err := client.Schedules(ctx)
		fmt.Println(len(all), err)
	})
	// Output: 0 <nil>
}

// A page of a back office says what an action is about to take.
func ExampleFilter_String() {
	fmt.Println(admin.Filter{Type: "SEND_MAIL", State: admin.StateDead, Error: "refused"})
	// Output: type SEND_MAIL, state dead, error containing "refused"
}

// A page of a back office offers an action where it has an effect.
func ExampleAction_States() {
	fmt.Println(admin.ActionRedrive.States())
	// Output: [dead]
}
