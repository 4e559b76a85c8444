// Signup is a small web app with an outbox. A sign-up creates a user and, in the same transaction,
// two tasks. A relay in the same process grants the user a credit, exactly once, and sends a mail.
// A button of the page kills the process after the commit: the next process sends the mail.
//
//	go run ./examples/signup [-addr :8080]
//	go run ./examples/signup -demo
//
// It uses the database that OUTBOX_DATABASE_URL names, or a PostgreSQL of its own; with -demo
// always a new database. Its mail service is its own, and the page shows the mails. The dashboard is
// at /outbox/, for browsers on this machine. A mail to full.example is refused, and becomes a dead
// letter: empty the mailboxes on the page, and redrive it in the dashboard, or by the command line,
// cmd/outbox.
//
// An app writes signup.go (it enqueues), tasks.go (the handlers), serve.go (the relay) and
// dashboard.go. The other files have the page, a stand-in for a mail service (sink.go), and the
// demo, which kills relays while users sign up, and counts the mails and credits.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/internal/testing/child"
)

var (
	addr    = flag.String("addr", ":8080", "serve HTTP at this `address`")
	hasDemo = flag.Bool("demo", false, "sign up 1,000 users while relays are killed, print what came of it, and exit")
)

func main() {
	child.Run(runChild)
	devdb.Start(func(ctx context.Context) error {
		if *hasDemo {
			fmt.Printf("the demo has a database of its own, dropped at its end; %s is not used\n", devdb.Variable)
			return devdb.WithOwn(ctx, func(url string) error {
				return demo{signUps: 1000, kills: 12, relays: 3, lasting: 18 * time.Second}.run(ctx, url, os.Stdout)
			})
		}
		return devdb.With(ctx, func(url string) error { return supervise(ctx, url, *addr, 2*time.Second, os.Stdout) })
	})
}

// supervise runs the app as a process, and starts it again after a kill, as systemd and Kubernetes
// do. A new start and a mail take as long as pause, so that they can be watched.
func supervise(ctx context.Context, url, addr string, pause time.Duration, out io.Writer) error {
	inbox, err := startSink(pause) // no part of the app: it outlives the app's process
	if err != nil {
		return err
	}
	defer inbox.close()
	config := childConfig{URL: url, Mails: inbox.url, Addr: addr}
	for {
		app, err := child.Start(config, out)
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return app.Stop()
		case <-app.Ended:
		}
		if exit := (*exec.ExitError)(nil); !errors.As(app.Err, &exit) || exit.ExitCode() == 2 { // an error or a panic
			return app.Err
		}
		config.Killed = app.Pid
		if wait(ctx, pause) != nil {
			return nil
		}
	}
}
