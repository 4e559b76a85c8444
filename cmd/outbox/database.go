package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"strings"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/schemaname"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/schema"
)

// connect opens the pool and checks the version of the schema.
func (a *app) connect(ctx context.Context) error {
	if err := a.open(); err != nil {
		return err
	}
	return a.bounded(ctx, func(ctx context.Context) error {
		if err := schema.Check(ctx, a.db, schema.Schema(a.schema)); err != nil {
			return err
		}
		return schema.CheckRowSecurity(ctx, a.db, schema.Schema(a.schema))
	})
}

// dsn is the connection string; "" is that of libpq's environment.
func (a *app) dsn() string { return cmp.Or(a.url, os.Getenv("OUTBOX_DATABASE_URL")) }

// open opens the pool, without sending anything.
func (a *app) open() error {
	if a.db != nil {
		return nil
	}
	if !schemaname.Valid(a.schema) {
		return usage("--schema %q: %s", a.schema, schemaname.Rule)
	}
	dsn := a.dsn()
	if misread(dsn) {
		return usage("the password in the database's URL has a /, ? or #: write it as %%2F, %%3F or %%23")
	}
	if os.Getenv("PGAPPNAME") == "" { // which an application_name in dsn overrides
		_ = os.Setenv("PGAPPNAME", "outbox")
	}
	db, err := pgdb.Open(dsn)
	if err != nil {
		return usage("%w: check --database-url, OUTBOX_DATABASE_URL or the PG… environment", err)
	}
	db.SetMaxOpenConns(3)
	a.db = db
	a.client, err = admin.New(db, admin.Config{Schema: a.schema, Actor: a.actorName(), Tool: "outbox"})
	if err != nil {
		return usage("--actor: %w", err)
	}
	return nil
}

// misread reports whether the password in a URL is not escaped: a driver would take parts of the
// password for a host or a database, and name them in errors.
func misread(dsn string) bool {
	_, rest, found := strings.Cut(dsn, "://")
	if !found {
		return false
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 || strings.Contains(rest[:end], "@") || !strings.Contains(rest[:end], ":") {
		return false
	}
	if path, _, _ := strings.Cut(rest[end:], "?"); strings.Contains(path, "@") {
		return true
	}
	_, err := url.Parse(dsn)
	return strings.Contains(rest[end:], "@") && (err != nil || rest[end] != '/')
}

var errTimeout = errors.New("timed out")

// bounded calls f with a context that ends after --timeout.
func (a *app) bounded(ctx context.Context, f func(ctx context.Context) error) error {
	if a.timeout <= 0 {
		return f(ctx)
	}
	short, cancel := context.WithTimeoutCause(ctx, a.timeout, errTimeout)
	defer cancel()
	err := f(short)
	if err != nil && ctx.Err() == nil && context.Cause(short) == errTimeout {
		return errTimeout
	}
	return err
}

// look calls f in a read-only transaction, for a command that has connected.
func (a *app) look(ctx context.Context, f func(ctx context.Context, tx *sql.Tx) error) error {
	return a.bounded(ctx, func(ctx context.Context) error {
		tx, err := a.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: true})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		return f(ctx, tx)
	})
}

// read connects and calls f with a client in a read-only transaction.
func (a *app) read(ctx context.Context, f func(ctx context.Context, c *admin.Client) error) error {
	if err := a.connect(ctx); err != nil {
		return err
	}
	return a.look(ctx, func(ctx context.Context, tx *sql.Tx) error { return f(ctx, a.client.In(tx)) })
}

// get connects and returns the result of a read of the client.
func get[T any](
	ctx context.Context, a *app, read func(*admin.Client, context.Context) (T, error),
) (found T, err error) {
	err = a.read(ctx, func(ctx context.Context, c *admin.Client) error {
		found, err = read(c, ctx)
		return err
	})
	return found, err
}

// act connects and calls f with a client on the pool: each call is a transaction of its own.
func (a *app) act(ctx context.Context, f func(ctx context.Context, c *admin.Client) error) error {
	if err := a.connect(ctx); err != nil {
		return err
	}
	return a.bounded(ctx, func(ctx context.Context) error { return f(ctx, a.client) })
}

// change connects and calls f in a transaction, with a client in it.
func (a *app) change(ctx context.Context, f func(ctx context.Context, tx *sql.Tx, c *admin.Client) error) error {
	return a.act(ctx, func(ctx context.Context, c *admin.Client) error {
		return outbox.InTx(ctx, a.db, func(tx *sql.Tx) error { return f(ctx, tx, c.In(tx)) })
	})
}

// explain is an error in one line with its remedy, without the connection string; "": print nothing.
func (a *app) explain(ctx context.Context, err error) string {
	text := strings.ReplaceAll(strings.TrimPrefix(pgerr.WithoutDSN(err).Error(), "outbox: "), "\n", "; ")
	migrate := "outbox migrate up"
	if a.schema != schemaname.Default {
		migrate = "outbox --schema " + a.schema + " migrate up"
	}
	switch code := pgerr.Code(err); {
	case errors.Is(err, errTimeout):
		return "no answer within " + a.timeout.String() +
			": try a longer --timeout; outbox doctor finds locks and long transactions; " +
			"counts take longer with each enqueue while no relay works"
	case errors.Is(err, outbox.ErrCommitUnknown):
		return text + ": look before you repeat it"
	case ctx.Err() != nil && exitCode(err) == exitFailed: // drivers return errors of several kinds
		return "interrupted"
	case errors.Is(err, schema.ErrNotMigrated):
		if strings.Contains(text, "is at version 0,") {
			return "the schema " + a.schema + " is not migrated: run " + migrate
		}
		text, canMigrate := strings.CutSuffix(strings.TrimPrefix(text, schema.ErrNotMigrated.Error()+": "),
			"run schema.Migrate")
		if !canMigrate { // a schema from before the baseline, or with tables of another's
			return strings.NewReplacer("by schema.Schema", "by --schema", "schema.Migrate", migrate).Replace(text)
		}
		return strings.Replace(text, "this code", "this command", 1) + "run " + migrate
	case errors.Is(err, schema.ErrNewer):
		text, _, _ = strings.Cut(text, ": after a rollback")
		return text + ": install the command of that version"
	case code == "25006":
		return text + ": is this a standby? Connect to the primary"
	case code == "42501":
		roles := "outbox_viewer to look, outbox_operator to act, outbox_worker to enqueue, " +
			"outbox_owner to migrate, reindex and repair"
		return text + ": use a member of a role with the right: " + strings.ReplaceAll(roles, "outbox_", a.schema+"_") +
			" (docs/security.md)"
	case strings.HasPrefix(code, "28"):
		return text + ": check user and password in --database-url, OUTBOX_DATABASE_URL, PGUSER and PGPASSWORD, " +
			"~/.pgpass or the server's pg_hba.conf"
	case code == "3D000":
		return text + ": check the database's name in --database-url, OUTBOX_DATABASE_URL or PGDATABASE"
	case code == "" && strings.Contains(text, "SSL is not enabled on the server"):
		return "the server has no TLS: in a trusted network add sslmode=disable to the connection string, " +
			"or set PGSSLMODE=disable"
	case code == "" && (strings.Contains(text, "dial ") || strings.Contains(text, "repeats the connection string")):
		return text + ": check --database-url, OUTBOX_DATABASE_URL or the PG… environment"
	}
	return text
}
