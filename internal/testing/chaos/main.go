//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/txoutbox/outbox/internal/testing/chaos/app"
	"github.com/txoutbox/outbox/internal/testing/child"
)

func main() {
	child.Run(app.Run)
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err != nil {
		fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program; its children notice
	passed := true
	if o.mutation != "" {
		passed, err = mutate(ctx, o)
	} else {
		passed, err = runs(ctx, o)
	}
	if err != nil {
		fatal(err)
	}
	if !passed {
		os.Exit(1)
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "chaos:", err)
	os.Exit(2)
}
