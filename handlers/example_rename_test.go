package handlers_test

import (
	"cmp"
	"context"
	"fmt"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// Greeting had the field Email until it was renamed. The first deploy adds EmailAddress, and handlers
// read both. The second one has Enqueue fill EmailAddress in place of Email. When no stored task has
// Email any more, it can go.
type Greeting struct {
	EmailAddress string `json:"email_address,omitempty"`
	Email        string `json:"email,omitempty"`
}

func (g Greeting) To() string { return cmp.Or(g.EmailAddress, g.Email) }

var SendGreeting = outbox.NewTaskType[Greeting]("SEND_GREETING")

// A payload that has a field which its Go type does not have fails the attempt, in place of a
// greeting to nobody.
func ExampleStrict() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	reg := handlers.New(handlers.Strict(), handlers.MaxAttempts(1)) // for all types
	handlers.Leased(reg, SendGreeting, func(_ context.Context, task *outbox.Task[Greeting]) error {
		fmt.Println("to", task.Payload.To())
		return nil
	})
	enqueueAll(db, SendGreeting.New(Greeting{Email: "stored@example.com"}),
		SendGreeting.New(Greeting{EmailAddress: "new@example.com"}))
	_, err := db.Exec(`INSERT INTO outbox.task (task_type, payload)
		VALUES ('SEND_GREETING', '{"mail": "wrong@example.com"}')`)
	must(err)
	runDue(ctx, db, reg)
	printRow(db, `SELECT last_error FROM outbox.dead_task`)
	// Unordered output:
	// to stored@example.com
	// to new@example.com
	// handlers: the payload does not decode: unknown field "mail"
}
