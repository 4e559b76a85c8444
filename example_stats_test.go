package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

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
