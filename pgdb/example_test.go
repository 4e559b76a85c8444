package pgdb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/relay"
)

func ExampleOpen() {
	ctx := context.Background()
	_, dsn, drop := relaytest.ExampleServer()
	defer drop()

	db, err := pgdb.Open(dsn) // instead of sql.Open("postgres", dsn)
	relaytest.Must(err)
	defer db.Close()
	db.SetMaxOpenConns(12)
	relaytest.Must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		enqueued, err := outbox.Enqueue(ctx, tx, "SEND_WELCOME", map[string]any{"user_id": 7})
		fmt.Println(enqueued.Outcome)
		return err
	}))
	// Output: created
}

// The function asks for the password of the moment, here in a variable of the environment. The same
// function serves LISTEN.
func ExampleOpenFunc() {
	ctx := context.Background()
	_, url, drop := relaytest.ExampleServer()
	defer drop()
	os.Setenv("APP_DATABASE", url) // as the rotation would

	dsn := func(context.Context) (string, error) {
		if url := os.Getenv("APP_DATABASE"); url != "" {
			return url, nil
		}
		return "", errors.New("APP_DATABASE is not set")
	}
	db, err := pgdb.OpenFunc(dsn)
	relaytest.Must(err)
	defer db.Close()
	fmt.Println(db.PingContext(ctx))

	reg := handlers.New()
	handlers.Tx(reg, outbox.NewTaskType[int]("COUNT"),
		func(context.Context, *sql.Tx, *outbox.Task[int]) error { return nil })
	_, err = relay.New(db, reg, relay.Config{ListenDSNFunc: dsn})
	fmt.Println(err)
	// Output:
	// <nil>
	// <nil>
}

// Connections go through a dialer of the app, such as a cloud provider's connector.
func ExampleDialer() {
	_, dsn, drop := relaytest.ExampleServer()
	defer drop()
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		fmt.Println("dialed")
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	db, err := pgdb.Open(dsn, pgdb.Dialer(dial))
	relaytest.Must(err)
	defer db.Close()
	fmt.Println(db.PingContext(context.Background()))
	// Output:
	// dialed
	// <nil>
}
