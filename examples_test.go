package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// printMail is a registry whose one handler prints the payloads of SEND_MAIL.
func printMail() *handlers.Registry {
	reg := handlers.New()
	handlers.Leased(reg, outbox.NewTaskType[string]("SEND_MAIL"),
		func(_ context.Context, task *outbox.Task[string]) error {
			fmt.Println("mail to", task.Payload)
			return nil
		})
	return reg
}

// The task exists exactly if the transaction commits, with whatever else it wrote.
func ExampleInTx() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	mail := outbox.NewTaskType[string]("SEND_MAIL")
	errFull := errors.New("the event is booked out")

	book := func(email string, seats int) error {
		return outbox.InTx(ctx, db, func(tx *sql.Tx) error {
			if _, err := mail.Enqueue(ctx, tx, email); err != nil {
				return err
			}
			if seats == 0 {
				return errFull
			}
			return nil
		})
	}
	fmt.Println(book("ada@example.com", 1))
	fmt.Println(book("eve@example.com", 0))
	runDue(ctx, db, printMail())
	// Output:
	// <nil>
	// the event is booked out
	// mail to ada@example.com
}

// One statement writes the business row and the task: from any language, a SQL function or psql. A
// task whose name is taken by a waiting one is skipped, and no error.
func Example_plainSQL() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	_, err := db.ExecContext(ctx, `CREATE TABLE usr (usr_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text NOT NULL)`)
	must(err)

	_, err = db.ExecContext(ctx, `
		WITH u AS (INSERT INTO usr (email) VALUES ('ada@example.com'), ('eve@example.com') RETURNING email)
		INSERT INTO outbox.task (task_type, payload)
		SELECT 'SEND_MAIL', to_jsonb(email) FROM u`)
	must(err)
	for range 2 {
		result, err := db.ExecContext(ctx, `INSERT INTO outbox.task (task_type, payload, unique_key)
			VALUES ('SEND_MAIL', '"bob@example.com"', 'welcome bob')`)
		must(err)
		n, _ := result.RowsAffected()
		fmt.Println("tasks:", n)
	}
	runDue(ctx, db, printMail())
	// Output:
	// tasks: 1
	// tasks: 0
	// mail to ada@example.com
	// mail to eve@example.com
	// mail to bob@example.com
}

// Thousands of tasks are one statement.
func ExampleEnqueueMany() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	invite := outbox.NewTaskType[int]("INVITE")
	tasks := make([]outbox.TaskSpec, 5000)
	for i := range tasks {
		tasks[i] = invite.New(i)
	}
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		enqueued, err := outbox.EnqueueMany(ctx, tx, tasks)
		fmt.Println(len(enqueued), "tasks")
		return err
	}))
	calls, invited := 0, 0
	reg := handlers.New()
	handlers.Batch(reg, invite, 1000, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[int]) error {
		calls, invited = calls+1, invited+len(tasks)
		return nil
	})
	runDue(ctx, db, reg)
	fmt.Println(invited, "in", calls, "transactions")
	// Output:
	// 5000 tasks
	// 5000 in 5 transactions
}

func ExampleStats() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	var mail = outbox.NewTaskType[string]("SEND_MAIL")

	enqueueAll(db, mail.New("ada@example.com"), mail.New("nobody"),
		mail.New("eve@example.com", outbox.After(time.Hour)))
	reg := handlers.New()
	handlers.Tx(reg, mail, func(_ context.Context, _ *sql.Tx, task *outbox.Task[string]) error {
		if task.Payload == "nobody" {
			return handlers.Dead(fmt.Errorf("%q is no address", task.Payload))
		}
		return nil
	})
	runDue(ctx, db, reg)

	all, err := outbox.Stats(ctx, db)
	must(err)
	for _, s := range all {
		fmt.Printf("%s: ready %d, scheduled %d, dead %d, finished %d, failed %d, next in %v\n",
			s.Type, s.Ready, s.Scheduled, s.Dead, s.Finished, s.Failed, time.Until(s.NextRunAt).Round(time.Minute))
	}
	// Output: SEND_MAIL: ready 0, scheduled 1, dead 1, finished 1, failed 1, next in 1h0m0s
}

// Two transactions that each keep one doctor on duty, as they see it, would together leave none.
// PostgreSQL fails one of them, and its repeat sees what the other has done.
func ExampleInTx_serializable() {
	db, drop := exampleDatabase()
	defer drop()
	ctx, errAlone := context.Background(), errors.New("nobody else is on duty")
	_, err := db.ExecContext(ctx, `CREATE TABLE duty (doctor text NOT NULL);
		INSERT INTO duty VALUES ('Ada'), ('Bob')`)
	must(err)

	leave := func(doctor string, meanwhile func()) error {
		for {
			err := outbox.InTx(ctx, db, func(tx *sql.Tx) error { // does nothing but SQL, as it may run again
				var others int
				err := tx.QueryRowContext(ctx, `SELECT count(*) FROM duty WHERE doctor <> $1`, doctor).Scan(&others)
				switch {
				case err != nil:
					return err
				case others == 0:
					return errAlone
				}
				if _, err := tx.ExecContext(ctx, `DELETE FROM duty WHERE doctor = $1`, doctor); err != nil {
					return err
				}
				meanwhile()
				_, err = outbox.Enqueue(ctx, tx, "SAY_GOODBYE", doctor)
				return err
			}, outbox.Isolation(sql.LevelSerializable))
			if !outbox.IsSerializationFailure(err) {
				return err
			}
			fmt.Println(doctor, "tries again")
		}
	}
	fmt.Println("Ada:", leave("Ada", func() { fmt.Println("Bob:", leave("Bob", func() {})) }))

	// Output:
	// Bob: <nil>
	// Ada tries again
	// Ada: nobody else is on duty
}

// An app that commits by itself wakes the relay in its process, which would find the task at its next
// poll.
func ExampleWake() {
	db, drop := exampleDatabase()
	defer drop()
	ctx, sent, reg := context.Background(), make(chan string), handlers.New()
	mail := outbox.NewTaskType[string]("SEND_MAIL")
	handlers.Tx(reg, mail, func(_ context.Context, _ *sql.Tx, task *outbox.Task[string]) error {
		sent <- task.Payload
		return nil
	})
	r, err := relay.New(db, reg, relay.Config{PollInterval: time.Minute})
	must(err)
	must(r.Start(ctx))
	tx, err := db.BeginTx(ctx, nil)
	must(err)
	_, err = mail.Enqueue(ctx, tx, "ada@example.com")
	must(err)
	must(tx.Commit())
	outbox.Wake()
	fmt.Println(<-sent)
	must(r.Stop(ctx))
	// Output: ada@example.com
}

// What the examples share.
var (
	exampleDatabase = relaytest.ExampleDatabase
	enqueueAll      = relaytest.EnqueueAll
	must            = relaytest.Must
	runDue          = relaytest.RunDue
)

// The reports of the big tenant wait for each other, so that of the small one runs second.
func ExampleGroupBy() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	type Report struct {
		Tenant string
		N      int
	}
	report := outbox.NewTaskType[Report]("REPORT")
	for n := range 3 {
		enqueueAll(db, report.New(Report{"big", n + 1}, outbox.GroupBy("big")))
	}
	enqueueAll(db, report.New(Report{"small", 1}, outbox.GroupBy("small")))
	reg := handlers.New()
	handlers.Leased(reg, report, func(_ context.Context, task *outbox.Task[Report]) error {
		fmt.Println(task.Payload.Tenant, task.Payload.N)
		return nil
	}, handlers.MaxRunningPerKey(1)) // the default
	runDue(ctx, db, reg)
	// Output:
	// big 1
	// small 1
	// big 2
	// big 3
}

// Each tenant has a schema of its own. What names one tenant cannot get into the outbox of another.
func ExampleIn() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	acme := outbox.In("acme") // of each request, by its tenant
	must(schema.Migrate(ctx, db, schema.Schema(acme.Schema())))
	type Invoice struct{ Number int }
	send := outbox.NewTaskType[Invoice]("SEND_INVOICE")
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := send.In(acme).Enqueue(ctx, tx, Invoice{7})
		return err
	}))
	err := outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := acme.Enqueue(ctx, tx, "SEND_INVOICE", Invoice{8}, outbox.Schema("other"))
		return err
	})
	fmt.Println(err)
	reg := handlers.New()
	handlers.Leased(reg, send, func(_ context.Context, task *outbox.Task[Invoice]) error {
		fmt.Println("invoice", task.Payload.Number)
		return nil
	})
	r, err := relay.New(db, reg, relay.Config{Schema: acme.Schema(), Logger: slog.New(slog.DiscardHandler)})
	must(err)
	must(r.RunOnce(ctx))
	stats, err := acme.Stats(ctx, db)
	must(err)
	fmt.Println(stats[0].Type, "finished:", stats[0].Finished)
	// Output:
	// outbox: invalid option: Schema("other"): the task is enqueued in the outbox In("acme")
	// invoice 7
	// SEND_INVOICE finished: 1
}

// A customer is reminded of a cart once in a day, however often he comes by.
func ExampleFor() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	type Cart struct{ ID int }
	remind := outbox.NewTaskType[Cart]("REMIND", outbox.UniquePayload(outbox.For(24*time.Hour)))
	reg := handlers.New()
	handlers.Leased(reg, remind, func(_ context.Context, task *outbox.Task[Cart]) error {
		fmt.Println("remind of cart", task.Payload.ID)
		return nil
	})
	for _, id := range []int{7, 7, 8, 7} {
		must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
			e, err := remind.Enqueue(ctx, tx, Cart{id})
			fmt.Println("cart", id, e.Outcome)
			return err
		}))
		runDue(ctx, db, reg)
	}
	err := outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := remind.Enqueue(ctx, tx, Cart{9}, outbox.UniquePayload(outbox.For(-time.Hour)))
		return err
	})
	fmt.Println(err)
	// Output:
	// cart 7 created
	// remind of cart 7
	// cart 7 skipped
	// cart 8 created
	// remind of cart 8
	// cart 7 skipped
	// outbox: invalid option: Unique: For(-1h0m0s): must be between 1µs and 876000h0m0s, or 0 for no period
}

// A code that was not sent in time is of no use: the relay was away for too long.
func ExampleExpiresAfter() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	type Code struct{ Email string }
	send := outbox.NewTaskType[Code]("SEND_CODE", outbox.ExpiresAfter(10*time.Minute)) // of each by default
	enqueueAll(db,
		send.New(Code{"ada@example.com"}),
		send.New(Code{"bob@example.com"}, outbox.ExpiresAt(time.Now().Add(-time.Minute))),
		send.New(Code{"eve@example.com"}, outbox.ExpiresAfter(0)), // never
	)
	err := outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := send.Enqueue(ctx, tx, Code{"max@example.com"}, outbox.RunAt(time.Unix(60, 0)),
			outbox.ExpiresAt(time.Unix(60, 0).UTC()))
		return err
	})
	fmt.Println(err)
	reg := handlers.New()
	handlers.Leased(reg, send, func(_ context.Context, task *outbox.Task[Code]) error {
		fmt.Println("to", task.Payload.Email, "it expires:", task.ExpiresAt != nil)
		return nil
	})
	runDue(ctx, db, reg)
	client, err := admin.New(db, admin.Config{})
	must(err)
	dead, err := client.Tasks(ctx, admin.TaskQuery{Filter: admin.Filter{Reason: outbox.ReasonExpired}})
	must(err)
	fmt.Println(len(dead.Tasks), "dead letter:", dead.Tasks[0].LastError)
	// Output:
	// outbox: invalid option: ExpiresAt(1970-01-01 00:01:00 +0000 UTC): must be after RunAt and After
	// to ada@example.com it expires: true
	// to eve@example.com it expires: false
	// 1 dead letter: relay: the task expired before it had begun
}

// Changes of one account are sent in their order; accounts do not wait for each other.
func ExampleOrderedBy() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	type Change struct {
		Account string
		Version int
	}
	send := outbox.NewTaskType[Change]("SEND_CHANGE")
	enqueueAll(db,
		send.New(Change{"ada", 1}, outbox.OrderedBy("ada")),
		send.New(Change{"ada", 2}, outbox.OrderedBy("ada"), outbox.Priority(-10)), // more urgent, and still second
		send.New(Change{"eve", 1}, outbox.OrderedBy("eve")),
	)
	reg, busy := handlers.New(), true
	handlers.Leased(reg, send, func(_ context.Context, task *outbox.Task[Change]) error {
		fmt.Println(task.OrderingKey, task.Payload.Version)
		if task.Payload == (Change{"ada", 1}) && busy {
			return handlers.RetryAfter(time.Hour, errors.New("the server is busy"))
		}
		return nil
	})
	runDue(ctx, db, reg)
	busy = false
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error { // the server is back, and nobody wants to wait
		result, err := outbox.RunNow(ctx, tx, 1)
		fmt.Println("it is", result)
		return err
	}))
	runDue(ctx, db, reg)
	// Output:
	// ada 1
	// eve 1
	// it is due
	// ada 1
	// ada 2
}

// Where a later task is better than none: what fails steps out of the order, and its key goes on.
func ExampleSkipFailed() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	show := outbox.NewTaskType[int]("SHOW_PRICE", outbox.OrderedBy("bread"), outbox.SkipFailed())
	enqueueAll(db, show.New(1), show.New(2), show.New(3))
	reg := handlers.New()
	handlers.Leased(reg, show, func(_ context.Context, task *outbox.Task[int]) error {
		if task.Payload == 2 {
			fmt.Println("2 fails")
			return errors.New("the display is off")
		}
		fmt.Println(task.Payload)
		return nil
	}, handlers.Backoff(func(int, error) (time.Duration, bool) { return time.Hour, true }))
	runDue(ctx, db, reg)
	// Output:
	// 1
	// 2 fails
	// 3
}

// A search index is rebuilt once for many changes of a document, and again if one comes while it is
// rebuilt.
func ExampleUnique() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	type Document struct{ ID int }
	index := outbox.NewTaskType[Document]("INDEX_DOCUMENT")
	changed := func(id int) {
		err := outbox.InTx(ctx, db, func(tx *sql.Tx) error { // with the change itself
			got, err := index.Enqueue(ctx, tx, Document{id}, outbox.UniquePayload()) // or Unique(fmt.Sprint(id))
			fmt.Println("document", id, got.Outcome)
			return err
		})
		must(err)
	}

	changed(7)
	changed(7)
	changed(8)
	reg := handlers.New()
	first := true
	handlers.Tx(reg, index, func(_ context.Context, _ *sql.Tx, task *outbox.Task[Document]) error {
		fmt.Println("index", task.Payload.ID)
		if task.Payload.ID == 7 && first {
			first = false
			changed(7) // by somebody else, meanwhile
		}
		return nil
	})
	runDue(ctx, db, reg)
	// Output:
	// document 7 created
	// document 7 skipped
	// document 8 created
	// index 7
	// document 7 created
	// index 8
	// index 7
}

// A bulk push that creates, updates or skips, told per task; ConflictReschedule with After is a
// debounce.
func ExampleEnqueueMany_unique() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	digest := outbox.NewTaskType[string]("SEND_DIGEST", outbox.After(10*time.Minute))
	err := outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		got, err := outbox.EnqueueMany(ctx, tx, []outbox.TaskSpec{
			digest.New("one message", outbox.Unique("ada")),
			digest.New("one message", outbox.Unique("eve")),
			digest.New("two messages", outbox.Unique("ada"), outbox.OnConflict(outbox.ConflictReplace)),
			digest.New("two messages", outbox.Unique("eve"), outbox.OnConflict(outbox.ConflictReschedule)),
			digest.New("three messages", outbox.Unique("eve")),
		})
		for _, g := range got {
			fmt.Println(g.ID == got[0].ID, g.Outcome)
		}
		return err
	})
	must(err)
	// Output:
	// true created
	// false created
	// true updated
	// false updated
	// false skipped
}

// A worker stalls in the middle of its work, and another takes the task over. Both end, and only
// the one that holds the lease can write.
func ExampleTask_Complete() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	_, err := db.ExecContext(ctx, `CREATE TABLE charge (task_id bigint, by text)`)
	must(err)
	pay := outbox.NewTaskType[int]("PAY")
	enqueueAll(db, pay.New(42))
	work := func(name string, before func()) *handlers.Registry {
		reg := handlers.New()
		handlers.Leased(reg, pay, func(ctx context.Context, task *outbox.Task[int]) error {
			before() // the slow part: no transaction is open
			err := task.Complete(context.WithoutCancel(ctx), func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO charge VALUES ($1, $2)`, task.ID, name)
				return err
			})
			fmt.Printf("%s, attempt %d: lease lost: %t\n", name, task.Attempt, errors.Is(err, outbox.ErrLeaseLost))
			return err
		})
		return reg
	}

	begun, wakeUp := make(chan struct{}), make(chan struct{})
	first, err := relay.New(db, work("the first worker", func() { close(begun); <-wakeUp }),
		relay.Config{Workers: 1, Logger: slog.New(slog.DiscardHandler)})
	must(err)
	stopping, stop := context.WithCancel(ctx)
	must(first.Start(stopping))
	<-begun
	stop()
	// A relay takes over by itself, 10 s after the last heartbeat; an operator need not wait.
	var id string
	must(db.QueryRowContext(ctx, `SELECT relay_id FROM outbox.task`).Scan(&id))
	client, err := admin.New(db, admin.Config{})
	must(err)
	_, err = client.HandBack(ctx, id)
	must(err)
	runDue(ctx, db, work("the second worker", func() {}))
	close(wakeUp)
	must(first.Stop(ctx))

	var rows int
	must(db.QueryRowContext(ctx, `SELECT count(*) FROM charge`).Scan(&rows))
	fmt.Println("charges:", rows)
	// Output:
	// the second worker, attempt 2: lease lost: false
	// the first worker, attempt 1: lease lost: true
	// charges: 1
}

// A call that leaves the database has the task's key, so its receiver can tell a repetition.
func ExampleTask_Key() {
	db, drop := exampleDatabase()
	defer drop()
	pay, reg, calls, payments := outbox.NewTaskType[int]("PAY"), handlers.New(), 0, map[string]int{}
	handlers.Leased(reg, pay, func(_ context.Context, task *outbox.Task[int]) error {
		calls++
		payments[task.Key()] = task.Payload // the provider knows its payments by the key
		if task.Attempt == 1 {
			return errors.New("the answer is lost")
		}
		return nil
	}, handlers.Backoff(func(int, error) (time.Duration, bool) { return 0, true }))
	enqueueAll(db, pay.New(42))
	runDue(context.Background(), db, reg)
	fmt.Println("calls:", calls, "payments:", len(payments))
	// Output: calls: 2 payments: 1
}
