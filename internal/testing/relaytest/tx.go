package relaytest

import (
	"context"
	"database/sql"
	"os"
	"strconv"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// Grouped says that OUTBOX_TEST_GROUP has tasks of Tx handlers run in groups of so many: what holds
// without groups holds with them.
var Grouped = os.Getenv("OUTBOX_TEST_GROUP") != ""

// Tx is handlers.Tx.
func Tx[P any](r *handlers.Registry, t outbox.TaskType[P],
	h func(ctx context.Context, tx *sql.Tx, task *outbox.Task[P]) error, opts ...handlers.Option) {
	if Grouped {
		n, err := strconv.Atoi(os.Getenv("OUTBOX_TEST_GROUP"))
		if err != nil {
			panic(err)
		}
		opts = append([]handlers.Option{handlers.GroupCommit(n, 0)}, opts...)
	}
	handlers.Tx(r, t, h, opts...)
}
