// Postgres runs a command with a PostgreSQL of its own, which ends with the command. The command
// finds the connection string in OUTBOX_DATABASE_URL.
//
//	go run ./examples/postgres go run ./examples/chi
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"

	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/internal/testing/devpg"
)

func run(ctx context.Context, command []string, out io.Writer) (err error) {
	server, err := devpg.Open(ctx, func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), devdb.Variable+"="+server.URL())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, out, os.Stderr
	return cmd.Run()
}

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: go run ./examples/postgres COMMAND...")
	}
	signal.Notify(make(chan os.Signal, 1), os.Interrupt) // Ctrl-C reaches the command as well, and ends it
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		log.Fatal(err)
	}
}
