package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/schema"
)

// The type is a name here, and the payload any value of encoding/json.
func ExampleEnqueue() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	err := outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		task, err := outbox.Enqueue(ctx, tx, "SEND_MAIL", "ada@example.com", outbox.Priority(5))
		fmt.Println(task.ID, task.Outcome)
		return err
	})
	must(err)
	_, err = outbox.Enqueue(ctx, db, "SEND_MAIL", "eve@example.com")
	fmt.Println("a pool has no transaction:", errors.Is(err, outbox.ErrNoTransaction))
	runDue(ctx, db, printMail())
	// Output:
	// 1 created
	// a pool has no transaction: true
	// mail to ada@example.com
}

// The compiler checks the payload: welcome.Enqueue(ctx, tx, 7) is an error.
func ExampleTaskType_Enqueue() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	type Welcome struct{ UserID int64 }
	welcome := outbox.NewTaskType[Welcome]("SEND_WELCOME")
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		task, err := welcome.Enqueue(ctx, tx, Welcome{UserID: 7}, outbox.After(time.Hour))
		fmt.Println(task.ID, task.Outcome)
		return err
	}))
	// Output: 1 created
}

// New prepares tasks of several types for one statement.
func ExampleTaskType_New() {
	welcome, credit := outbox.NewTaskType[int]("SEND_WELCOME"), outbox.NewTaskType[int]("GIVE_CREDIT")
	tasks := []outbox.TaskSpec{welcome.New(7, outbox.After(time.Hour)), credit.New(7)}
	for _, task := range tasks { // outbox.EnqueueMany(ctx, tx, tasks)
		fmt.Println(task.Type, task.Payload, len(task.Options), "options")
	}
	// Output:
	// SEND_WELCOME 7 1 options
	// GIVE_CREDIT 7 0 options
}

// Tools ask for a type by the name that the code has.
func ExampleTaskType_Name() {
	welcome := outbox.NewTaskType[int]("SEND_WELCOME")
	fmt.Println(welcome.Name()) // client.PauseType(ctx, welcome.Name())
	// Output: SEND_WELCOME
}

// The tasks of a tenant go to the tenant's schema.
func ExampleTaskType_In() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	must(schema.Migrate(ctx, db, schema.Schema("acme")))
	invoice := outbox.NewTaskType[int]("SEND_INVOICE").In(outbox.In("acme"))
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := invoice.Enqueue(ctx, tx, 7)
		return err
	}))
	for _, name := range []string{"acme", "outbox"} {
		stats, err := outbox.Stats(ctx, db, outbox.Schema(name))
		fmt.Println(name, len(stats), err)
	}
	// Output:
	// acme 1 <nil>
	// outbox 0 <nil>
}

// An app inserts the task by its own SQL, with the payload as Enqueue would send it.
func ExampleTaskSpec_Encode() {
	type Welcome struct {
		UserID int64 `json:"user_id"`
	}
	payload, err := outbox.NewTaskType[Welcome]("SEND_WELCOME").New(Welcome{UserID: 7}).Encode()
	fmt.Println(string(payload), err) // INSERT INTO outbox.task (task_type, payload) VALUES ($1, $2)
	// Output: {"user_id":7} <nil>
}

// A customer takes the order back before its mail is due.
func ExampleCancel() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	enqueueAll(db, outbox.NewTaskType[string]("SEND_MAIL").New("ada@example.com", outbox.After(time.Hour)))
	for range 2 {
		must(outbox.InTx(ctx, db, func(tx *sql.Tx) error { // with the change of the order
			result, err := outbox.Cancel(ctx, tx, 1)
			fmt.Println(result)
			return err
		}))
	}
	// Output:
	// canceled
	// not_found
}

// A mail that is due in an hour is sent now.
func ExampleRunNow() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	enqueueAll(db, outbox.NewTaskType[string]("SEND_MAIL").New("ada@example.com", outbox.After(time.Hour)))
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		result, err := outbox.RunNow(ctx, tx, 1)
		fmt.Println(result)
		return err
	}))
	runDue(ctx, db, printMail())
	// Output:
	// due
	// mail to ada@example.com
}

// The outbox of another schema; outbox.In binds a tenant's for good.
func ExampleSchema() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	must(schema.Migrate(ctx, db, schema.Schema("acme")))
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		task, err := outbox.Enqueue(ctx, tx, "SEND_INVOICE", 7, outbox.Schema("acme"))
		if err != nil {
			return err
		}
		canceled, err := outbox.Cancel(ctx, tx, task.ID, outbox.Schema("acme"))
		fmt.Println(canceled)
		return err
	}))
	// Output: canceled
}

// inAcme calls fn in a transaction, with the outbox of a tenant.
func inAcme(fn func(ctx context.Context, tx *sql.Tx, acme outbox.Outbox) error) {
	ctx, acme := context.Background(), outbox.In("acme")
	db, drop := exampleDatabase()
	defer drop()
	must(schema.Migrate(ctx, db, schema.Schema(acme.Schema())))
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error { return fn(ctx, tx, acme) }))
}

// The name of a tenant's schema, for the parts of the app that need it.
func ExampleOutbox_Schema() {
	acme := outbox.In("acme")
	fmt.Println(acme.Schema()) // relay.Config{Schema: acme.Schema()}
	// Output: acme
}

// A tenant's task goes to the tenant's schema.
func ExampleOutbox_Enqueue() {
	inAcme(func(ctx context.Context, tx *sql.Tx, acme outbox.Outbox) error {
		task, err := acme.Enqueue(ctx, tx, "SEND_INVOICE", 7)
		fmt.Println(task.ID, task.Outcome)
		return err
	})
	// Output: 1 created
}

// Many tasks of a tenant are one statement.
func ExampleOutbox_EnqueueMany() {
	invoice := outbox.NewTaskType[int]("SEND_INVOICE")
	inAcme(func(ctx context.Context, tx *sql.Tx, acme outbox.Outbox) error {
		tasks, err := acme.EnqueueMany(ctx, tx, []outbox.TaskSpec{invoice.New(7), invoice.New(8)})
		fmt.Println(len(tasks), "tasks")
		return err
	})
	// Output: 2 tasks
}

// A task of the tenant is taken back.
func ExampleOutbox_Cancel() {
	inAcme(func(ctx context.Context, tx *sql.Tx, acme outbox.Outbox) error {
		task, err := acme.Enqueue(ctx, tx, "SEND_INVOICE", 7)
		if err != nil {
			return err
		}
		result, err := acme.Cancel(ctx, tx, task.ID)
		fmt.Println(result)
		return err
	})
	// Output: canceled
}

// A task of the tenant that is due in an hour runs now.
func ExampleOutbox_RunNow() {
	inAcme(func(ctx context.Context, tx *sql.Tx, acme outbox.Outbox) error {
		task, err := acme.Enqueue(ctx, tx, "SEND_INVOICE", 7, outbox.After(time.Hour))
		if err != nil {
			return err
		}
		result, err := acme.RunNow(ctx, tx, task.ID)
		fmt.Println(result)
		return err
	})
	// Output: due
}

// The counts of one tenant.
func ExampleOutbox_Stats() {
	inAcme(func(ctx context.Context, tx *sql.Tx, acme outbox.Outbox) error {
		if _, err := acme.Enqueue(ctx, tx, "SEND_INVOICE", 7); err != nil {
			return err
		}
		stats, err := acme.Stats(ctx, tx) // or a pool
		fmt.Println(stats[0].Type, "ready:", stats[0].Ready)
		return err
	})
	// Output: SEND_INVOICE ready: 1
}

// The level of one transaction.
func ExampleIsolation() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		var level string
		err := tx.QueryRowContext(ctx, `SHOW transaction_isolation`).Scan(&level)
		fmt.Println(level)
		return err
	}, outbox.Isolation(sql.LevelRepeatableRead)))
	// Output: repeatable read
}

// Such a transaction may be repeated from its beginning; after other errors a repeat gives the same.
func ExampleIsSerializationFailure() {
	fmt.Println(outbox.IsSerializationFailure(&pq.Error{Code: "40001"}))
	fmt.Println(outbox.IsSerializationFailure(&pq.Error{Code: "23505"})) // a violated unique constraint
	// Output:
	// true
	// false
}

// A request enqueues, and another asks for the result by the id.
func ExampleResult() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	add, reg := outbox.NewTaskType[[]int]("ADD"), handlers.New()
	handlers.Leased(reg, add, func(_ context.Context, task *outbox.Task[[]int]) error {
		return task.SetResult(task.Payload[0] + task.Payload[1])
	}, handlers.Retention(time.Hour)) // how long it can be asked for
	enqueueAll(db, add.New([]int{2, 3}))
	runDue(ctx, db, reg)
	sum, err := outbox.Result[int](ctx, db, 1)
	fmt.Println(sum, err)
	// Output: 5 <nil>
}

// The result is stored with the end of the task.
func ExampleTask_SetResult() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	type Thumbnail struct{ URL string }
	resize, reg := outbox.NewTaskType[string]("RESIZE_IMAGE"), handlers.New()
	handlers.Leased(reg, resize, func(_ context.Context, task *outbox.Task[string]) error {
		return task.SetResult(Thumbnail{"https://img.example.com/small/" + task.Payload})
	}, handlers.Retention(24*time.Hour))
	enqueueAll(db, resize.New("ada.jpg"))
	runDue(ctx, db, reg)
	small, err := outbox.Result[Thumbnail](ctx, db, 1)
	fmt.Println(small.URL, err)
	// Output: https://img.example.com/small/ada.jpg <nil>
}

// A handler that finds much to do takes more time than its timeout gives.
func ExampleTask_Extend() {
	db, drop := exampleDatabase()
	defer drop()
	imports, reg := outbox.NewTaskType[string]("IMPORT"), handlers.New()
	handlers.Leased(reg, imports, func(ctx context.Context, task *outbox.Task[string]) error {
		err := task.Extend(ctx, time.Hour)
		deadline, _ := ctx.Deadline()
		fmt.Println(time.Until(deadline).Round(time.Minute), err)
		return err
	}, handlers.Timeout(time.Minute))
	enqueueAll(db, imports.New("large.csv"))
	runDue(context.Background(), db, reg)
	// Output: 1h0m0s <nil>
}

// The transaction of an app that uses sqlx.
func ExampleSqlxInTx() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	dbx := sqlx.NewDb(db, "postgres") // the app's
	dbx.MustExec(`CREATE TABLE usr (email text NOT NULL)`)
	must(outbox.SqlxInTx(ctx, dbx, func(tx *sqlx.Tx) error {
		user := map[string]any{"email": "ada@example.com"}
		if _, err := tx.NamedExecContext(ctx, `INSERT INTO usr (email) VALUES (:email)`, user); err != nil {
			return err
		}
		_, err := outbox.Enqueue(ctx, tx, "SEND_MAIL", "ada@example.com")
		return err
	}))
	runDue(ctx, db, printMail())
	// Output: mail to ada@example.com
}

// A Tx handler with sqlx: the transaction is the one that removes the task.
func ExampleSqlxHandler() {
	db, drop := exampleDatabase()
	defer drop()
	dbx := sqlx.NewDb(db, "postgres") // the app's
	count, reg := outbox.NewTaskType[string]("COUNT_VISIT"), handlers.New()
	handlers.Tx(reg, count, outbox.SqlxHandler(dbx, func(ctx context.Context, tx *sqlx.Tx,
		task *outbox.Task[string]) error {
		var n int
		err := tx.GetContext(ctx, &n, tx.Rebind(`SELECT length(?)`), task.Payload)
		fmt.Println(n, err)
		return err
	}))
	enqueueAll(db, count.New("/prices"))
	runDue(context.Background(), db, reg)
	// Output: 7 <nil>
}

// Complete has a *sql.Tx, which becomes one of sqlx.
func ExampleSqlxTx() {
	db, drop := exampleDatabase()
	defer drop()
	dbx := sqlx.NewDb(db, "postgres") // the app's
	dbx.MustExec(`CREATE TABLE payment (id int, receipt text)`)
	pay, reg := outbox.NewTaskType[int]("PAY"), handlers.New()
	handlers.Leased(reg, pay, func(ctx context.Context, task *outbox.Task[int]) error {
		payment := map[string]any{"id": task.Payload, "receipt": "R-1"} // of the provider
		return task.Complete(ctx, func(tx *sql.Tx) error {
			_, err := outbox.SqlxTx(dbx, tx).NamedExecContext(ctx, `INSERT INTO payment VALUES (:id, :receipt)`, payment)
			return err
		})
	})
	enqueueAll(db, pay.New(7))
	runDue(context.Background(), db, reg)
	var receipt string
	must(dbx.Get(&receipt, `SELECT receipt FROM payment WHERE id = 7`))
	fmt.Println(receipt)
	// Output: R-1
}
