package relay_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/relay"
)

// F28: where no relay has a ListenDSN, no transaction of the app notifies, so it may be a part of a two-phase commit. Where
// one has, PostgreSQL refuses PREPARE TRANSACTION while it is idle.
func TestATransactionThatEnqueuesCanBePreparedWhereNoRelayListens(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := adopt(t, pgtest.Local(t, map[string]string{"max_prepared_transactions": "2"}).URL())
	conn, err := direct(t, db.URL).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	do := func(statements ...string) (err error) {
		for i := 0; i < len(statements) && err == nil; i++ {
			_, err = conn.ExecContext(t.Context(), statements[i])
		}
		return err
	}
	const enqueue = `INSERT INTO outbox.task (task_type, payload) VALUES ('TX', '{}')`
	requested := func() bool { return db.Int(t, `SELECT last_value FROM outbox.wake`) > 0 }

	r := run(t, db, all(), relay.Config{ListenDSN: db.URL})
	eventually(t, 20*time.Second, "beside a relay that listens PREPARE is refused", func() bool {
		if !requested() {
			return false
		}
		err := do(`BEGIN`, enqueue, `PREPARE TRANSACTION 'with'`)
		if err == nil { // the relay's wake-up request had run out
			err = do(`ROLLBACK PREPARED 'with'`)
		}
		return pgerr.Code(err) == "0A000"
	})
	r.Stop()
	db.Do(t, `SELECT setval('outbox.wake', 0)`) // as it is when its last request has run out

	run(t, db, all(), relay.Config{PollInterval: 100 * time.Millisecond})
	db.Enqueue(t, "TX", 1)
	db.Emptied(t, 20*time.Second) // and now it is idle
	later := db.Int(t, `INSERT INTO outbox.task (task_type, payload, run_at) VALUES ('TX', '{}', now() + interval '1 hour') RETURNING task_id`)
	if err := do(`BEGIN`, enqueue, fmt.Sprintf(`SELECT outbox.run_task_now(%d)`, later), `PREPARE TRANSACTION 'without'`); err != nil {
		t.Fatal(err)
	}
	if requested() {
		t.Error("a relay that does not listen requests wake-ups")
	}
	if err := do(`COMMIT PREPARED 'without'`); err != nil {
		t.Fatal(err)
	}
	db.Emptied(t, 20*time.Second)
	db.want(t, 3, "tasks ran", `SELECT count(*) FROM effect`)
}
