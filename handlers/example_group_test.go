package handlers_test

import (
	"context"
	"database/sql"
	"errors"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// Tasks share a transaction, and one that fails leaves the others their work.
func ExampleGroupCommit() {
	db, drop := usrs(3)
	defer drop()
	reg := handlers.New()
	handlers.Tx(reg, GrantCredit, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[Credit]) error {
		_, err := tx.ExecContext(ctx, `UPDATE usr SET credit = credit + $2 WHERE usr_id = $1`, task.Payload.UserID,
			task.Payload.Amount)
		if err == nil && task.Payload.UserID == 2 {
			err = errors.New("not today")
		}
		return err
	}, handlers.GroupCommit(32, 0), handlers.MaxAttempts(1))
	enqueueAll(db, GrantCredit.New(Credit{UserID: 1, Amount: 10}), GrantCredit.New(Credit{UserID: 2, Amount: 20}),
		GrantCredit.New(Credit{UserID: 3, Amount: 30}))
	runDue(context.Background(), db, reg)
	printRow(db, `SELECT string_agg('user ' || usr_id || ' has ' || credit, ', ' ORDER BY usr_id) FROM usr`)
	printRow(db, `SELECT last_error FROM outbox.dead_task`)

	// Output:
	// user 1 has 10, user 2 has 0, user 3 has 30
	// not today
}
