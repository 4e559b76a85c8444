package schema_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"strings"

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
