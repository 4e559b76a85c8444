package outboxtest_test

import (
	"database/sql"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/outboxtest"
)

// The README's test, and a database for it.
func TestSignUp(t *testing.T) {
	tx, err := openTestDatabase(t).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() // of all that the test does

	if err := signUp(t.Context(), tx, "ada@example.com"); err != nil {
		t.Fatal(err)
	}
	outboxtest.RequireEnqueued(t, tx, SendWelcome, func(w Welcome) bool { return w.UserID == 1 }, outboxtest.After(time.Hour))

	mails := 0
	reg := registry(func(int64) error { mails++; return nil })              // the app's handlers
	result := outboxtest.Drain(t, tx, reg, outboxtest.Through(2*time.Hour)) // they run here and now, in tx
	if err := result.Err(); err != nil || mails != 1 {
		t.Errorf("%d mails, want 1; the runs were\n%v", mails, result)
	}
	outboxtest.RequireNotEnqueued(t, tx, SendWelcome, nil)
}

func openTestDatabase(t *testing.T) *sql.DB {
	db := newDB(t, "postgres")
	exec(t, db, createUsr)
	return db
}

func TestTheREADMEHasThatTest(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	this, err := os.ReadFile("readme_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(readme), "```go\nfunc TestSignUp")
	block, _, found := strings.Cut(block, "```")
	if !found || !strings.Contains(string(this), block) {
		t.Error("TestSignUp in README.md is not the one in readme_test.go, line by line")
	}
}
