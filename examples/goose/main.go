// Goose applies the outbox's migrations with goose, beside the app's own.
//
//	go run ./examples/goose
//
// It uses the database that OUTBOX_DATABASE_URL names, or a PostgreSQL of its own.
package main

import (
	"context"
	"embed"
	"fmt"
	"io"
	"io/fs"

	"github.com/pressly/goose/v3"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/schema"
)

//go:embed migrations
var migrations embed.FS

// run brings the outbox's schema and then the app's up to date. Both number their files from 1, so
// each has a table of versions of its own. A new version of the outbox comes with the module, and
// is applied by the next start or deploy.
func run(ctx context.Context, url string, out io.Writer) error {
	db, err := pgdb.Open(url)
	if err != nil {
		return err
	}
	defer db.Close()
	app, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	for _, m := range []struct {
		name, table string
		files       fs.FS
	}{
		{"outbox", "goose_outbox_version", schema.FS()},
		{"app", goose.DefaultTablename, app},
	} {
		provider, err := goose.NewProvider(goose.DialectPostgres, db, m.files, goose.WithTableName(m.table))
		if err != nil {
			return err
		}
		results, err := provider.Up(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %d migrations applied\n", m.name, len(results))
	}
	return schema.Check(ctx, db) // also at the start of an app that does not migrate
}

func main() { devdb.Main(run) }
