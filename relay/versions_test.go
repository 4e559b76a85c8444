package relay_test

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgbouncer"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// A replica of the old code restarts after each of two migrations.
func TestARelayStartsBesideANewerSchemaThatAllowsIt(t *testing.T) {
	t.Parallel()
	db := adopt(t, pgtest.Database(t))
	for n := 1; n <= 2; n++ {
		db.Do(t, `INSERT INTO outbox.migration (version, oldest_version) VALUES ($1, $2)`, schema.Version()+n,
			schema.Version())
		db.Enqueue(t, "TX", 1)
		said := relaytest.Once(t, db.DB, all(), relay.Config{})
		want := fmt.Sprintf(`level=INFO msg="outbox: the schema is newer than this code, which may run beside it" `+
			`schema_version=%d code_version=%d`, schema.Version()+n, schema.Version())
		if got := strings.Count(said, want); got != 1 {
			t.Errorf("%d records of %s, want 1:\n%s", got, want, said)
		}
		db.Emptied(t, 0)
	}
	db.Do(t, `INSERT INTO outbox.migration (version, oldest_version) VALUES ($1, $2)`, schema.Version()+3,
		schema.Version()+1)
	r, err := relay.New(db.DB, all(), relay.Config{Logger: discard()})
	must(err)
	if err := r.Run(t.Context()); !errors.Is(err, schema.ErrNewer) ||
		!strings.Contains(err.Error(), fmt.Sprintf("needs code that knows version %d", schema.Version()+1)) {
		t.Errorf("got %v, want ErrNewer with the version that is needed", err)
	}
}

func TestARelayWarnsOfAServerThatIsNewerThanTheTestedOnes(t *testing.T) {
	t.Parallel()
	address := pgtest.Database(t)
	db := adopt(t, address)
	// The relay finds this function before PostgreSQL's own.
	db.Do(t, `CREATE SCHEMA future`)
	db.Do(t, `CREATE FUNCTION future.current_setting(name text) RETURNS text LANGUAGE sql STABLE RETURN
		CASE name WHEN 'server_version_num' THEN '190001'
		WHEN 'server_version' THEN '19.1' ELSE pg_catalog.current_setting(name) END`)
	later := direct(t, address+"&search_path=future,pg_catalog,public")
	later.Enqueue(t, "TX", 1)
	said := relaytest.Once(t, later.DB, all(), relay.Config{})
	if n := strings.Count(said, `level=WARN msg="outbox: this PostgreSQL is newer than the versions that the outbox `+
		`was tested with" server_version=19.1`); n != 1 {
		t.Errorf("%d warnings, want 1:\n%s", n, said)
	}
	db.Emptied(t, 0)
}

func TestPgBouncerInStatementModeIsRefusedWithASentence(t *testing.T) {
	t.Parallel()
	needs.Program(t, "pgbouncer", "pgbouncer")
	address := relaytest.Migrated(t)
	u, err := url.Parse(address)
	must(err)
	pooler, err := pgbouncer.Start(t.Context(), u, pgbouncer.Mode("statement"))
	must(err)
	defer pooler.Close()
	for driver, parameter := range map[string]string{"postgres": "binary_parameters=yes",
		"pgx": "default_query_exec_mode=exec"} {
		db := direct(t, pooler.URL(u).String()+"&"+parameter, driver)
		r, err := relay.New(db.DB, all(), relay.Config{Logger: discard()})
		must(err)
		_, ofDoctor := doctor.Check(t.Context(), db.DB)
		for call, err := range map[string]error{
			"Run": r.Run(t.Context()), "RunOnce": r.RunOnce(t.Context()), "doctor": ofDoctor,
			"Migrate": schema.Migrate(t.Context(), db.DB), "GrantRoles": schema.GrantRoles(t.Context(), db.DB),
			"Check": schema.Check(t.Context(), db.DB),
		} {
			if !errors.Is(err, schema.ErrStatementPooling) ||
				!strings.Contains(err.Error(), "set pool_mode to transaction or session") ||
				strings.Count(err.Error(), "schema: ") > 1 {
				t.Errorf("%s, %s: got %v, want ErrStatementPooling", driver, call, err)
			}
		}
	}
}
