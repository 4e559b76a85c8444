package schema_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/schema"
)

// A role of a web app that may enqueue, and nothing else. Here it is put on with SET ROLE; an app
// logs in with one.
func ExampleGrantRoles() {
	ctx := context.Background()
	url, drop := pgtest.ExampleDatabase()
	defer drop()
	db, err := sql.Open("postgres", url)
	must(err)
	defer db.Close()
	name := "r_" + strings.ToLower(rand.Text()) // an app has one that it knows, mostly "outbox"
	defer func() {
		for _, group := range []string{"owner", "enqueuer", "worker", "viewer", "operator"} {
			_, err := db.Exec(fmt.Sprintf(`DROP OWNED BY "%[1]s_%[2]s" CASCADE; DROP ROLE "%[1]s_%[2]s"`, name, group))
			must(err)
		}
	}()

	must(schema.Migrate(ctx, db, schema.Schema(name)))
	must(schema.GrantRoles(ctx, db, schema.Schema(name)))

	tx, err := db.BeginTx(ctx, nil)
	must(err)
	defer tx.Rollback()
	_, err = tx.ExecContext(ctx, `SET LOCAL ROLE "`+name+`_enqueuer"`)
	must(err)
	_, err = outbox.Enqueue(ctx, tx, "SEND_MAIL", map[string]string{"to": "ada@example.com"}, outbox.Schema(name))
	fmt.Println("enqueue:", err)
	_, err = tx.ExecContext(ctx, `SELECT payload FROM "`+name+`".task`)
	fmt.Println("read payloads:", err)
	// Output:
	// enqueue: <nil>
	// read payloads: pq: permission denied for table task (42501)
}

// A newer version of the app has migrated the schema, by a migration that lets this code run beside
// it. This process restarts in the middle of the deploy.
func ExampleInspect() {
	ctx := context.Background()
	url, drop := pgtest.ExampleDatabase()
	defer drop()
	db, err := sql.Open("postgres", url)
	must(err)
	defer db.Close()
	must(schema.Migrate(ctx, db))
	_, err = db.Exec(`INSERT INTO outbox.migration (version, oldest_version) VALUES ($1, $2)`, schema.Version()+1, schema.Version())
	must(err)

	fmt.Println("migrate:", schema.Migrate(ctx, db))
	state, err := schema.Inspect(ctx, db)
	fmt.Println("inspect:", err)
	fmt.Println("newer by", state.Version-schema.Version())
	// Output:
	// migrate: <nil>
	// inspect: <nil>
	// newer by 1
}

// What a driver says of a connection string that it cannot parse repeats it, with the password.
func ExampleMigrate_connectionString() {
	db, err := sql.Open("postgres", "postgres://app:hunter2@db:port/app")
	must(err)
	defer db.Close()

	fmt.Println(schema.Migrate(context.Background(), db))
	// Output: schema: migrate outbox: connect: the connection failed; the error is not shown, as it repeats the connection string
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// exampleDB is an empty database of an app.
func exampleDB() (db *sql.DB, drop func()) {
	url, end := pgtest.ExampleDatabase()
	db, err := sql.Open("postgres", url)
	must(err)
	return db, func() { db.Close(); end() }
}

// A process that may not migrate asks at its start whether the tables are those of its code.
func ExampleCheck() {
	db, drop := exampleDB()
	defer drop()
	ctx := context.Background()
	fmt.Println(errors.Is(schema.Check(ctx, db), schema.ErrNotMigrated))
	must(schema.Migrate(ctx, db))
	fmt.Println(schema.Check(ctx, db))
	// Output:
	// true
	// <nil>
}

// A policy of row level security would hide the tasks from the role of a relay.
func ExampleCheckRowSecurity() {
	db, drop := exampleDB()
	defer drop()
	ctx := context.Background()
	must(schema.Migrate(ctx, db))
	fmt.Println(schema.CheckRowSecurity(ctx, db)) // the owner of the tables sees all rows
	// Output: <nil>
}

// A migration on a busy database gives up a lock soon, and tries again.
func ExampleLockTimeout() {
	db, drop := exampleDB()
	defer drop()
	fmt.Println(schema.Migrate(context.Background(), db, schema.LockTimeout(500*time.Millisecond)))
	// Output: <nil>
}

// An outbox in a schema of its own.
func ExampleSchema() {
	db, drop := exampleDB()
	defer drop()
	ctx, acme := context.Background(), schema.Schema("acme")
	must(schema.Migrate(ctx, db, acme))
	fmt.Println(schema.Check(ctx, db, acme), errors.Is(schema.Check(ctx, db), schema.ErrNotMigrated))
	// Output: <nil> true
}

// The migrations as files, for goose and the like.
func ExampleFS() {
	files, err := fs.Glob(schema.FS(), "*.sql")
	fmt.Println(files[0], len(files) == schema.Version(), err)
	// Output: 00001_tables.sql true <nil>
}

// The migrations as one script, for psql.
func ExampleSQL() {
	script, err := schema.SQL()
	fmt.Println(strings.Contains(script, "CREATE TABLE"), err) // os.WriteFile("outbox.sql", []byte(script), 0o644)
	// Output: true <nil>
}

// The roles as a script, for an owner of the database that applies it by hand.
func ExampleRolesSQL() {
	script, err := schema.RolesSQL()
	fmt.Println(strings.Contains(script, "outbox_worker"), err)
	// Output: true <nil>
}

// The version of the tables is that of the code, once Migrate has run.
func ExampleVersion() {
	db, drop := exampleDB()
	defer drop()
	must(schema.Migrate(context.Background(), db))
	state, err := schema.Inspect(context.Background(), db)
	fmt.Println(state.Version == schema.Version(), err)
	// Output: true <nil>
}
