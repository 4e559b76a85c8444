// Signup is a small web app with an outbox: a sign-up creates a user and, in the same transaction, the tasks
// that follow from it. A relay in the same process grants the user a credit, exactly once, and sends a mail.
//
//	go run ./examples/signup [-addr :8080] [-database-url URL] [-smtp HOST:PORT]
//	go run ./examples/signup -demo [-seed N] [-database-url URL]
//
// Without -database-url it runs on a PostgreSQL of its own, without -smtp it sends to a mail server of its own,
// which the page shows as the inbox. The demo kills relays while users sign up and counts what came of it.
//
// At /outbox/ is the dashboard, for browsers on this machine only, at /metrics what Prometheus scrapes, at /healthz the readiness of the relay.
// There is something to operate on: the app's own mail server refuses mails to addresses at full.example until the button on the page empties
// these mailboxes, or
//
//	curl -d full=false localhost:8080/mailboxes
//
// Until then the mail of a sign-up there is a dead letter. The dashboard shows it and why, and redrives it; so does the command line,
// cmd/outbox (dead list, dead show, dead redrive), with the connection string that the app prints if the PostgreSQL is its own.
//
// With OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 it sends traces there: of a sign-up one, from the request to the handlers of its tasks.
//
// What the outbox adds to an app is in users.go (signUp enqueues), tasks.go (the handlers), serve.go (the relay),
// operations.go (dashboard, metrics, readiness), traces.go and database.go (its tables).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
)

type config struct {
	addr, databaseURL, smtp string
	demo                    bool
	seed                    uint64
	hashCost                int // of bcrypt; 0 is its default
}

func main() {
	if isRelayChild() {
		os.Exit(relayChild(os.Stdin))
	}
	cfg, err := parseFlags(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		os.Exit(2) // parseFlags said why
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if cfg.demo {
		err = runDemo(ctx, cfg, os.Stdout)
	} else {
		err = serve(ctx, cfg, logger, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "signup:", err)
		os.Exit(1)
	}
}

func parseFlags(args []string, out io.Writer) (config, error) {
	var cfg config
	flags := flag.NewFlagSet("signup", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&cfg.addr, "addr", ":8080", "serve HTTP at this `address`")
	flags.StringVar(&cfg.databaseURL, "database-url", "", "the PostgreSQL `URL`; without it the app starts a PostgreSQL of its own")
	flags.StringVar(&cfg.smtp, "smtp", "", "send mails through the server at `host:port`; without it they stay in the app's inbox")
	flags.BoolVar(&cfg.demo, "demo", false, "sign up 1,000 users while relays are killed, print what came of it, and exit")
	flags.Uint64Var(&cfg.seed, "seed", rand.Uint64(), "`seed` of the demo's random choices")
	fail := func(format string, args ...any) (config, error) {
		err := fmt.Errorf(format, args...)
		fmt.Fprintln(out, "signup:", err)
		return config{}, err
	}
	if err := flags.Parse(args); err != nil {
		return config{}, err
	}
	if flags.NArg() > 0 {
		return fail("unexpected argument %q", flags.Arg(0))
	}
	if cfg.smtp != "" {
		if cfg.demo {
			return fail("-demo counts the mails in its own inbox, so it takes no -smtp")
		}
		if _, err := newMailer(cfg.smtp); err != nil {
			return fail("-smtp: %w", err)
		}
	}
	return cfg, nil
}
