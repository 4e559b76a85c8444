//go:build unix

package app

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/txoutbox/outbox/pgdb"
)

// Child runs a process of the app and ends it, if this process was started for that.
func Child() {
	config := os.Getenv(Env)
	if config == "" {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // the parent is gone
	}()
	if err := work(config); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(0)
}

func work(config string) error {
	var c Config
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	db, err := open(c.URL, c.Driver)
	if err != nil {
		return err
	}
	if c.Role == RoleProducer {
		return produce(ctx, c, db)
	}
	side, err := open(c.URL, c.Driver)
	if err != nil {
		return err
	}
	side.SetMaxOpenConns(4)
	return runRelay(ctx, c, db, side)
}

// open opens a pool whose sessions have the process as their name.
func open(url, driver string) (*sql.DB, error) {
	url += "&application_name=" + strconv.Itoa(os.Getpid())
	if driver == "pgx" {
		return sql.Open("pgx", url)
	}
	return pgdb.Open(url)
}
