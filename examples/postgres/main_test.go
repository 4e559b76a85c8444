package main

import (
	"bytes"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	_ "github.com/lib/pq"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

// inCommand makes the test's program the command.
const inCommand = "OUTBOX_EXAMPLE_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(inCommand) != "" {
		os.Stdout.WriteString(os.Getenv(devdb.Variable))
		if len(os.Args) > 1 {
			os.Exit(3)
		}
		return
	}
	os.Exit(pgtest.Main(m))
}

func TestACommandFindsItsPostgreSQL(t *testing.T) {
	t.Setenv(inCommand, "yes")
	t.Setenv("OUTBOX_TEST_DATABASE_URL", pgtest.Server(t).URL()) // for devpg to find
	t.Setenv("OUTBOX_TEST_POSTGRES", "url")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{self}, &out); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("postgres", strings.TrimSpace(out.String()))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.PingContext(t.Context()); err != nil || out.Len() == 0 {
		t.Errorf("the command was given %q: %v", &out, err)
	}
	var exit *exec.ExitError
	if err := run(t.Context(), []string{self, "fail"}, &out); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("a command that exits with 3: %v", err)
	}
}
