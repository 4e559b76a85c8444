package main

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/relay"
)

// childConfig is of a process that may be killed: the app, or a relay of the demo.
type childConfig struct {
	URL    string // of the database
	Mails  string // the URL of the mail service
	Addr   string // of the app; "": a relay of the demo
	Killed int    // the process of the app before this one; 0: this is the first
}

// runChild is the main function of such a process. ctx ends with the program that started it.
func runChild(ctx context.Context, c childConfig) error {
	if c.Addr != "" {
		return serve(ctx, c)
	}
	return relayOfDemo(ctx, c)
}

func relayOfDemo(ctx context.Context, c childConfig) error {
	slog.SetLogLoggerLevel(slog.LevelError) // a killed relay is news only to the others
	db, err := pgdb.Open(c.URL)
	if err != nil {
		return err
	}
	defer db.Close()
	reg := newRegistry(db, c.Mails)
	reg.Use(linger)
	r, err := relay.New(db, reg, relay.Config{ListenDSN: c.URL, DrainTimeout: 5 * time.Second})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// linger waits before and after each run, so that a kill finds runs that have not begun their work,
// and runs that have done it and are not yet on record.
func linger(next handlers.Func) handlers.Func {
	const most = 100 * time.Millisecond
	return func(ctx context.Context, call *handlers.Call) error {
		if err := wait(ctx, rand.N(most)); err != nil {
			return err
		}
		err := next(ctx, call)
		return errors.Join(err, wait(ctx, rand.N(most)))
	}
}
