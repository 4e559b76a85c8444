package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"regexp"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/relay"
)

// A mail cannot be sent: it is found, its cause seen, redriven, and gone.
func Example() {
	url, drop := pgtest.ExampleDatabase()
	defer drop()
	sh := func(line string) {
		fmt.Println("$ " + line)
		c := exec.Command("bash", "-c", line+" 2>&1")
		c.Env = environment(url, "outbox="+binary)
		c.Args[2] = "outbox() { \"$outbox\" \"$@\"; }; " + c.Args[2]
		out, _ := c.CombinedOutput()
		fmt.Printf("%s", regexp.MustCompile(` +\d+(\.\d)?s +`).ReplaceAll(out, []byte("  9s  "))) // ages, of any width
	}
	sh("outbox migrate up | cut -d: -f1")
	sh(`outbox enqueue SEND_MAIL '{"to": "ada@broken.example"}'`)

	db, err := sql.Open("postgres", url)
	if err != nil {
		panic(err)
	}
	defer db.Close()
	mended := false
	reg := handlers.New()
	handlers.Leased(reg, outbox.NewTaskType[map[string]string]("SEND_MAIL"), func(context.Context, *outbox.Task[map[string]string]) error {
		if mended {
			return nil
		}
		return handlers.Dead(errors.New("550 no such mailbox"))
	})
	work := func() {
		r, err := relay.New(db, reg, relay.Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err == nil {
			err = r.RunOnce(context.Background())
		}
		if err != nil {
			panic(err)
		}
	}
	work()
	sh("outbox dead list -type SEND_MAIL")
	sh("outbox dead show 1 -payload | grep -E '^(error|payload)'")
	mended = true
	sh("outbox dead redrive 1")
	work()
	sh("outbox tasks show 1")
	sh("outbox audit -json | grep -c entry_id")
	// Output:
	// $ outbox migrate up | cut -d: -f1
	// schema outbox
	// $ outbox enqueue SEND_MAIL '{"to": "ada@broken.example"}'
	// task 1: created
	// $ outbox dead list -type SEND_MAIL
	// TASK  TYPE       REASON   ATTEMPTS  DIED  ERROR
	//    1  SEND_MAIL  handler      1/20  9s  550 no such mailbox
	// $ outbox dead show 1 -payload | grep -E '^(error|payload)'
	// error         550 no such mailbox
	// payload       {"to": "ada@broken.example"}
	// $ outbox dead redrive 1
	// 1 dead letter redriven
	// $ outbox tasks show 1
	// outbox: task 1 is not there: it has finished, was canceled, or never was
	// $ outbox audit -json | grep -c entry_id
	// 3
}
