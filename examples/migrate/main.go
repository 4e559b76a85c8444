// Migrate applies the outbox's migrations with golang-migrate, beside the app's own.
//
//	go run ./examples/migrate
//
// It uses the database that OUTBOX_DATABASE_URL names, or a PostgreSQL of its own.
package main

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing/fstest"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database/postgres"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/schema"
)

//go:embed migrations
var migrations embed.FS

// up applies the files that are new. Each file system has a table of versions of its own, as both
// number their files from 1.
func up(ctx context.Context, db *sql.DB, files fs.FS, dir, table string) (version uint, err error) {
	source, err := iofs.New(files, dir)
	if err != nil {
		return 0, err
	}
	conn, err := db.Conn(ctx) // WithInstance would close the app's pool at the end
	if err != nil {
		return 0, err
	}
	target, err := postgres.WithConnection(ctx, conn, &postgres.Config{MigrationsTable: table})
	if err != nil {
		return 0, errors.Join(err, conn.Close())
	}
	m, err := migrate.NewWithInstance("files", source, "postgres", target)
	if err != nil {
		return 0, errors.Join(err, target.Close())
	}
	defer func() {
		e1, e2 := m.Close()
		err = errors.Join(err, e1, e2)
	}()
	if err := m.Up(); err != nil && !errors.Is(err, migrate.ErrNoChange) {
		return 0, err
	}
	version, _, err = m.Version()
	return version, err
}

// upFiles are the .sql files with the names that golang-migrate knows: 00001_tables.sql is
// 00001_tables.up.sql. There are no down files, as the outbox's schema has no way back.
//
// golang-migrate sends a file as one query, which PostgreSQL runs as one transaction: what fails
// leaves nothing. (So do not set MultiStatementEnabled, which cuts files at semicolons, those in
// functions included.) It marks the version as dirty all the same; once the reason is gone,
// Migrate.Force with the version before it makes the next Up try again.
func upFiles(files fs.FS) (fs.FS, error) {
	names, err := fs.Glob(files, "*.sql")
	out := fstest.MapFS{} // a file system in memory
	for _, name := range names {
		text, e := fs.ReadFile(files, name)
		err = errors.Join(err, e)
		out[strings.TrimSuffix(name, ".sql")+".up.sql"] = &fstest.MapFile{Data: text}
	}
	return out, err
}

// upOutbox applies the outbox's files. Where newer code has, golang-migrate would look for its files.
func upOutbox(ctx context.Context, db *sql.DB) (version uint, err error) {
	state, err := schema.Inspect(ctx, db)
	if state.Version > schema.Version() {
		return uint(state.Version), err // nil if this code may run beside it
	}
	files, err := upFiles(schema.FS())
	if err != nil {
		return 0, err
	}
	return up(ctx, db, files, ".", "migrate_outbox_version")
}

func run(ctx context.Context, url string, out io.Writer) error {
	db, err := pgdb.Open(url)
	if err != nil {
		return err
	}
	defer db.Close()
	version, err := upOutbox(ctx, db)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "outbox: version %d\n", version)
	if version, err = up(ctx, db, migrations, "migrations", postgres.DefaultMigrationsTable); err != nil {
		return err
	}
	fmt.Fprintf(out, "app: version %d\n", version)
	return schema.Check(ctx, db) // also at the start of an app that does not migrate
}

func main() { devdb.Main(run) }
