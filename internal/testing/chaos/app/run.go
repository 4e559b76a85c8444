//go:build unix

package app

import (
	"context"
	"database/sql"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/txoutbox/outbox/pgdb"
)

// Run is a process of the app. It returns when it got SIGTERM or has enqueued enough.
func Run(ctx context.Context, c Config) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
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
