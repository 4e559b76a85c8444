package relay_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/relay"
)

// F28: where no relay has a ListenDSN, no transaction of the app notifies, so it may be a part of a
// two-phase commit. Where one has, PostgreSQL refuses PREPARE TRANSACTION while it is idle.
func TestATransactionThatEnqueuesCanBePreparedWhereNoRelayListens(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := adopt(t, pgtest.Local(t, map[string]string{"max_prepared_transactions": "2"}).URL())
	run(t, db, all(), relay.Config{PollInterval: 100 * time.Millisecond})
	db.Enqueue(t, "TX", 1)
	db.Emptied(t, 20*time.Second) // and now it is idle
	later := db.Int(t, `INSERT INTO outbox.task (task_type, payload, run_at) VALUES ('TX', '{}', now() + interval '1 hour')
		RETURNING task_id`)
	conn, err := direct(t, db.URL).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, statement := range []string{`BEGIN`, `INSERT INTO outbox.task (task_type, payload) VALUES ('TX', '{}')`,
		fmt.Sprintf(`SELECT outbox.run_task_now(%d)`, later), `PREPARE TRANSACTION 'it'`, `COMMIT PREPARED 'it'`} {
		if _, err := conn.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	db.want(t, 0, "the wake-up request of a relay that does not listen", `SELECT last_value FROM outbox.wake`)
	db.Emptied(t, 20*time.Second)
	db.OnceEach(t, 3)
}
