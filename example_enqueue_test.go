package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
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
