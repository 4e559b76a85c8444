// Provide starts the PostgreSQL of a machine that has none, for devpg, which runs it by go run:
//
//	go run . docker FLAG...         a container of the server with these flags
//	go run . embedded HOME SCRATCH  the programs of the server in the directory HOME
//
// It prints a line of JSON, [devpg.Provided]. When its standard input ends it removes the container
// and ends.
//
// It is a program of its own for the sake of go.sum: tests of packages that apps import must not
// import its dependencies.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/txoutbox/outbox/internal/testing/devpg"
)

func main() {
	signal.Ignore(os.Interrupt, syscall.SIGPIPE) // the end of the parent is the end of standard input
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	provided, end, err := provide(ctx, os.Args[1:])
	if err != nil {
		provided.Error = err.Error()
	}
	err = json.NewEncoder(os.Stdout).Encode(provided)
	if err == nil && provided.Error == "" {
		<-ctx.Done()
	}
	if err := end(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func provide(ctx context.Context, args []string) (p devpg.Provided, end func() error, err error) {
	nothing := func() error { return nil }
	switch {
	case len(args) > 0 && args[0] == "docker":
		c, err := startContainer(ctx, args[1:])
		if err != nil {
			return p, nothing, err
		}
		return devpg.Provided{URL: c.url.String(), Version: c.version, From: c.image}, c.remove, nil
	case len(args) == 3 && args[0] == "embedded":
		return p, nothing, extract(ctx, args[1], args[2])
	}
	return p, nothing, errors.New("usage: docker FLAG... or embedded HOME SCRATCH")
}
