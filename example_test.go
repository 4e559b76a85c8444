package outbox_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// From here to newRelay it is the README's example.
type Welcome struct{ UserID int64 }

var GrantCredit = outbox.NewTaskType[Welcome]("GRANT_CREDIT")
var SendWelcome = outbox.NewTaskType[Welcome]("SEND_WELCOME")

func signUp(ctx context.Context, tx *sql.Tx, email string) error { // in your own transaction, or outbox.InTx
	var w Welcome
	err := tx.QueryRowContext(ctx, `INSERT INTO usr (email) VALUES ($1) RETURNING usr_id`, email).Scan(&w.UserID)
	if err != nil {
		return err
	}
	_, err = outbox.EnqueueMany(ctx, tx, []outbox.TaskSpec{GrantCredit.New(w), SendWelcome.New(w)})
	return err
}

func newRelay(db *sql.DB) (*relay.Relay, error) { // call its Run, in this process or another
	reg := handlers.New()
	handlers.Tx(reg, GrantCredit, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[Welcome]) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO credit (usr_id, cents) VALUES ($1, 500)`, task.Payload.UserID)
		return err // once: the row commits with the removal of the task
	})
	handlers.Leased(reg, SendWelcome, func(ctx context.Context, task *outbox.Task[Welcome]) error {
		return sendMail(ctx, task.Payload.UserID, task.Key()) // at least once: the receiver can tell by the key
	})
	return relay.New(db, reg, relay.Config{})
}

func serveSignUp(ctx context.Context, db *sql.DB, email string) error {
	return outbox.InTx(ctx, db, func(tx *sql.Tx) error { return signUp(ctx, tx, email) })
}

var sentMail = make(chan int64, 1)

func sendMail(_ context.Context, userID int64, _ string) error {
	sentMail <- userID
	return nil
}

func TestTheExampleOfTheREADMEWorks(t *testing.T) {
	t.Parallel()
	db := testDB(t)
	exec(t, db, `CREATE TABLE credit (usr_id bigint NOT NULL, cents int NOT NULL)`)
	r, err := newRelay(db)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	relayed := make(chan error, 1)
	go func() { relayed <- r.Run(ctx) }()
	if err := serveSignUp(ctx, db, "ada@example.com"); err != nil {
		t.Error(err)
	}
	select {
	case id := <-sentMail:
		if id != 1 {
			t.Errorf("mail for user %d, want 1", id)
		}
	case <-time.After(time.Minute):
		t.Error("no mail within a minute")
	}
	relaytest.Eventually(t, time.Minute, "no task is left", func() (done bool) {
		must(db.QueryRow(`SELECT NOT EXISTS (SELECT FROM outbox.task)`).Scan(&done))
		return done
	})
	stop()
	if err := <-relayed; err != nil {
		t.Errorf("Run: %v", err)
	}
	var credits string
	must(db.QueryRow(`SELECT string_agg(usr_id || ' has ' || cents, ', ') FROM credit`).Scan(&credits))
	if credits != "1 has 500" {
		t.Errorf("credits: %s, want one", credits)
	}
}
