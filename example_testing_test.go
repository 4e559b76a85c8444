package outbox_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/outboxtest"
)

// The first block of docs/guide/testing.md, and what it needs.
func TestSignUp(t *testing.T) {
	tx, err := testDB(t).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()

	if err := signUp(t.Context(), tx, "ada@example.com"); err != nil {
		t.Fatal(err)
	}
	outboxtest.RequireEnqueuedN(t, tx, 1, SendWelcome, nil)

	mails := 0
	reg := registry(func(userID int64) error { mails++; return nil })
	if err := outboxtest.Drain(t, tx, reg).Err(); err != nil || mails != 1 {
		t.Errorf("%d mails, want 1: %v", mails, err)
	}
	outboxtest.RequireNotEnqueued(t, tx, SendWelcome, nil)
}

func registry(send func(userID int64) error) *handlers.Registry {
	reg := handlers.New()
	handlers.Leased(reg, SendWelcome, func(_ context.Context, task *outbox.Task[Welcome]) error { return send(task.Payload.UserID) })
	return reg
}

func testDB(t *testing.T) *sql.DB {
	d := newDatabase(t)
	exec(t, d.db, `CREATE TABLE usr (usr_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text NOT NULL)`)
	return d.db
}

// quoted checks that the first such block of a page is in a file, line by line.
func quoted(t *testing.T, page, begin, file string) {
	t.Helper()
	_, block, _ := strings.Cut(read(t, page), begin)
	block, _, found := strings.Cut(block, "```")
	if !found || !strings.Contains(read(t, file), block) {
		t.Errorf("the block %s of %s is not in %s, line by line", begin, page, file)
	}
}

func TestTheGuideToTestingHasThatTest(t *testing.T) {
	quoted(t, "docs/guide/testing.md", "```go\nfunc TestSignUp", "example_testing_test.go")
}
