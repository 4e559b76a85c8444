package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	programs "github.com/txoutbox/outbox/internal/testing/needs"
)

func TestEachFileRecordsItsVersion(t *testing.T) {
	db := open(t, pgtest.Database(t))
	for i := range migrations() {
		migrate(t, db, files(migrations()[:i+1]...))
		if got := scan[int](t, db, "SELECT max(version) FROM outbox.migration"); got != i+1 {
			t.Fatalf("file %d: got version %d", i+1, got)
		}
	}
}

// The first migration is the first release.
func TestTheChangelogNamesEachMigration(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../CHANGELOG.md")
	noErr(t, err)
	for i := 2; i <= Version(); i++ {
		if said := fmt.Sprintf("migration %d", i); !strings.Contains(string(text), said) {
			t.Errorf("CHANGELOG.md says nothing of %s", said)
		}
	}
}

// Whoever applies the files, and under whatever name, the result is the same, and Migrate has
// nothing to do.
func TestFilesByPsqlAndGooseAreTheSameAsMigrate(t *testing.T) {
	programs.CI(t)
	reference := migrated(t)
	want := describe(t, reference, "outbox")
	for tool, apply := range map[string]func(t *testing.T, url string, texts ...string){"psql": psql, "goose": goose} {
		for _, name := range []string{"outbox", "select"} {
			t.Run(tool+" "+name, func(t *testing.T) {
				url := pgtest.Database(t)
				script, err := SQL(Schema(name))
				noErr(t, err)
				if name == "outbox" {
					names, err := fs.Glob(FS(), "*.sql")
					noErr(t, err)
					for _, name := range names {
						text, err := fs.ReadFile(FS(), name)
						noErr(t, err)
						apply(t, url, string(text))
					}
				}
				apply(t, url, script)
				apply(t, url, script) // does no harm
				db, w := watched(t, url)
				migrate(t, db, Schema(name))
				if got := w.writes(); len(got) > 0 {
					t.Errorf("Migrate wrote %q", got)
				}
				noErr(t, Check(t.Context(), db, Schema(name)))
				if got := describe(t, db, name); got != want {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
			})
		}
	}
}

func TestMigrateUnderAnotherNameIsTheSame(t *testing.T) {
	db := migrated(t)
	migrate(t, db, Schema("select"))
	if got, want := describe(t, db, "select"), describe(t, db, "outbox"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if err := Check(t.Context(), db, Schema("other")); !errors.Is(err, ErrNotMigrated) {
		t.Errorf("got %v, want ErrNotMigrated", err)
	}
}

// describe lists what a schema holds, who owns it and who may do what with it, with the schema's
// name as <name>.
func describe(t *testing.T, db *sql.DB, name string) string {
	t.Helper()
	d := scan[string](t, db, `WITH ns AS (SELECT * FROM pg_namespace WHERE nspname = '`+name+`'),
rel AS (SELECT c.* FROM pg_class c JOIN ns ON c.relnamespace = ns.oid),
line(text) AS (
  SELECT format('owner %s %s', nspowner::regrole, nspacl) FROM ns
  UNION ALL SELECT format('%s %s %s %s %s', relkind, relname, relowner::regrole, reloptions, relacl) FROM rel
  UNION ALL SELECT format('%s.%s %s %s %s %s %s', r.relname, attname, format_type(atttypid, atttypmod), attnotnull, attidentity, pg_get_expr(adbin, adrelid), attacl)
    FROM pg_attribute a JOIN rel r ON r.oid = attrelid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE attnum > 0 AND relkind IN ('r', 'v')
  UNION ALL SELECT format('%s %s', conname, pg_get_constraintdef(c.oid)) FROM pg_constraint c JOIN rel r ON r.oid = conrelid
  UNION ALL SELECT pg_get_indexdef(oid) FROM rel WHERE relkind = 'i'
  UNION ALL SELECT pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN rel r ON r.oid = tgrelid
  UNION ALL SELECT format('%s %s %s', pg_get_functiondef(p.oid), proowner::regrole, proacl) FROM pg_proc p JOIN ns ON pronamespace = ns.oid
  UNION ALL SELECT format('%s %s %s', r.relname, objsubid, description) FROM pg_description JOIN rel r ON r.oid = objoid
  UNION ALL SELECT format('default %s %s', defaclobjtype, defaclacl) FROM pg_default_acl JOIN ns ON defaclnamespace = ns.oid
  UNION ALL SELECT format('%s has %s', member::regrole, roleid::regrole) FROM pg_auth_members WHERE roleid::regrole::text LIKE '`+name+`\_%'
  UNION ALL SELECT format('version %s', version) FROM "`+name+`".migration)
SELECT string_agg(text, E'\n' ORDER BY text COLLATE "C") FROM line`)
	for _, written := range []string{`"` + name + `".`, name + "."} {
		d = strings.ReplaceAll(d, written, "<name>.")
	}
	return d
}

// psql applies a file as the comment in it says. Where there is no psql, its statements run as psql
// -1 would run them.
func psql(t *testing.T, url string, texts ...string) {
	t.Helper()
	program := programs.Optional(t, "postgresql-client", "psql")
	if program == "" {
		db := open(t, url)
		for _, text := range texts {
			inTx(t, db, text)
		}
		return
	}
	file := filepath.Join(t.TempDir(), "migration.sql")
	for _, text := range texts {
		noErr(t, os.WriteFile(file, []byte(text), 0o600))
		out, err := exec.CommandContext(t.Context(), program, url, "-X", "-v", "ON_ERROR_STOP=1", "-1", "-f", file).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", program, err, out)
		}
	}
}

// goose applies a file by goose's rules: its statements one at a time, in one transaction.
func goose(t *testing.T, url string, texts ...string) {
	t.Helper()
	db := open(t, url)
	for _, text := range texts {
		inTx(t, db, gooseStatements(t, text)...)
	}
}

func inTx(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	tx, err := db.BeginTx(context.WithoutCancel(t.Context()), nil)
	noErr(t, err)
	defer func() { _ = tx.Rollback() }()
	for _, s := range statements {
		if _, err := tx.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	noErr(t, tx.Commit())
}

// gooseStatements splits a migration as goose does: at a semicolon that ends a line, but between
// StatementBegin and StatementEnd, after the one line "-- +goose Up". It leaves out lines of
// comment.
func gooseStatements(t *testing.T, text string) (statements []string) {
	t.Helper()
	parts := strings.Split(text, "-- +goose ")
	for i, part := range parts[1:] {
		annotation, sql, _ := strings.Cut(part, "\n")
		sql = regexp.MustCompile(`(?m)^\s*--.*\n`).ReplaceAllString(sql, "")
		switch {
		case annotation == "Up" && i == 0 && parts[0] == "", annotation == "StatementEnd" && strings.HasPrefix(parts[i], "StatementBegin\n"):
			for s := range strings.SplitAfterSeq(sql, ";\n") {
				if strings.TrimSpace(s) != "" {
					statements = append(statements, s)
				}
			}
		case annotation == "StatementBegin":
			statements = append(statements, sql)
		default:
			t.Fatalf("the annotation %s is out of place", annotation)
		}
	}
	return statements
}

// code is a script without its comments.
func code(script string) string { return regexp.MustCompile(`--.*`).ReplaceAllString(script, "") }

func TestSQLForTheDefaultNameIsTheFiles(t *testing.T) {
	got, err := SQL()
	noErr(t, err)
	const up = "-- +goose Up\n"
	if want := up + strings.ReplaceAll(strings.Join(migrations(), ""), up, "") + current().annotated("outbox"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, name := range badNames {
		if got, err := SQL(Schema(name)); err == nil || got != "" {
			t.Errorf("SQL(%q) = %q, %v, want an error", name, got, err)
		}
	}
}

// Only a version's own INSERT may follow what goose and psql would run outside of their
// transaction. A character outside of ASCII cannot be stored, or not even be sent, where the
// database's encoding lacks it.
func TestFilesAreASCIIAndLeaveTransactionsToTheCaller(t *testing.T) {
	for i, text := range append(slices.Clone(migrations()), rolesScript, current().annotated("outbox")) {
		for _, word := range []string{"BEGIN;", "COMMIT", "ROLLBACK", "CONCURRENTLY", "VACUUM", "\n\\"} {
			if strings.Contains(code(text), word) {
				t.Errorf("file %d: %s", i+1, word)
			}
		}
		if i < Version() && !strings.HasPrefix(text, "-- +goose Up\n") || strings.Contains(text, "+goose Down") {
			t.Errorf("file %d: want goose's Up, and no Down", i+1)
		}
		if at := strings.IndexFunc(text, func(r rune) bool { return r > '~' || r < ' ' && r != '\n' }); at >= 0 {
			t.Errorf("file %d is not ASCII at %.40q", i+1, text[at:])
		}
	}
}

// state replaces the functions, views and triggers of a Migrate.
func state(functions, relations string) Option {
	return option(func(s *settings) { s.present = present{functions, relations} })
}

const objects = `SELECT string_agg(name, ' ' ORDER BY name COLLATE "C") FROM (
	SELECT p.oid::regprocedure::text FROM pg_proc p WHERE pronamespace = 'outbox'::regnamespace
	UNION ALL SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'v'
	UNION ALL SELECT tgname || ' on ' || tgrelid::regclass FROM pg_trigger WHERE NOT tgisinternal) AS o (name)`

// Whatever its signature was, and whether a trigger or another function needed it.
func TestAnObjectOfAnOlderStateNeverStays(t *testing.T) {
	db := open(t, pgtest.Database(t))
	const f, trigger = `CREATE OR REPLACE FUNCTION outbox.`, `CREATE OR REPLACE TRIGGER `
	const body = ` LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;`
	migrate(t, db, state(
		f+`a() RETURNS text`+body+f+`a(n integer, OUT m bigint) RETURNS SETOF bigint LANGUAGE sql AS 'SELECT 1::bigint';`+
			f+`a(VARIADIC of text[]) RETURNS text`+body+f+`a(t outbox.task) RETURNS text`+body+
			f+`kept(n integer DEFAULT 1) RETURNS text`+body+f+`gone() RETURNS trigger`+body+f+`moved() RETURNS trigger`+body,
		`CREATE OR REPLACE VIEW outbox.old AS SELECT outbox.kept(); CREATE OR REPLACE VIEW outbox.kept AS SELECT 1 AS one;`+
			trigger+`t1 AFTER INSERT ON outbox.task EXECUTE FUNCTION outbox.gone();`+
			trigger+`t2 AFTER INSERT ON outbox.task EXECUTE FUNCTION outbox.gone();`+
			trigger+`t3 AFTER INSERT ON outbox.task EXECUTE FUNCTION outbox.moved();`))
	run(t, db, `CREATE FUNCTION outbox.of_the_app() RETURNS integer LANGUAGE sql RETURN 1;
		CREATE VIEW outbox.of_the_app AS SELECT 1;
		GRANT EXECUTE ON FUNCTION outbox.kept TO pg_monitor`)
	oid := scan[int](t, db, `SELECT 'outbox.kept'::regproc::oid`)

	newer := state(f+`kept(n integer DEFAULT 1) RETURNS text`+body+f+`a(t outbox.relay) RETURNS text`+body+f+`moved() RETURNS trigger`+body,
		`CREATE OR REPLACE VIEW outbox.kept AS SELECT 1 AS one, 2 AS two;`+
			trigger+`t1 AFTER INSERT ON outbox.task EXECUTE FUNCTION outbox.moved();`+
			trigger+`t3 AFTER INSERT ON outbox.dead_task EXECUTE FUNCTION outbox.moved();`)
	migrate(t, db, newer)
	want := "kept of_the_app outbox.a(outbox.relay) outbox.kept(integer) outbox.moved() outbox.of_the_app() t1 on outbox.task t3 on outbox.dead_task"
	if got := scan[string](t, db, objects); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if now := scan[int](t, db, `SELECT 'outbox.kept'::regproc::oid`); now != oid || !scan[bool](t, db, `SELECT has_function_privilege('pg_monitor', 'outbox.kept(integer)', 'EXECUTE')`) {
		t.Error("a function was not replaced in its place, with its rights")
	}
}

// A change of functions alone is applied, and reaches a busy database: it locks no table.
func TestAChangeOfAFunctionAloneIsApplied(t *testing.T) {
	url := pgtest.Database(t)
	db := open(t, url)
	before := current()
	before.functions += "CREATE OR REPLACE FUNCTION outbox.which() RETURNS text LANGUAGE sql AS 'SELECT 1::text';"
	migrate(t, db, state(before.functions, before.relations))
	begin(t, open(t, url), `INSERT INTO outbox.task (task_type) VALUES ('A')`)
	if err := Check(t.Context(), db); !errors.Is(err, ErrNotMigrated) || !strings.Contains(err.Error(), "its functions are of other code: run schema.Migrate") {
		t.Errorf("got %v, want ErrNotMigrated", err)
	}
	migrate(t, db)
	noErr(t, Check(t.Context(), db))
	if scan[bool](t, db, `SELECT to_regproc('outbox.which') IS NOT NULL`) {
		t.Error("the function of before is still there")
	}
	if got := scan[int](t, db, `SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal`); got == 0 {
		t.Error("the triggers are gone")
	}
}

// Code of an older version never puts its functions back.
func TestOlderCodeLeavesTheFunctionsOfANewerVersion(t *testing.T) {
	db := open(t, pgtest.Database(t))
	of := func(version string) Option {
		return state("CREATE OR REPLACE FUNCTION outbox.which() RETURNS text LANGUAGE sql AS 'SELECT ''"+version+"''';", "")
	}
	allows := second("SELECT 1") + `UPDATE outbox.migration SET oldest_version = 1 WHERE version = 2;`
	migrate(t, db, files(first()), of("older"))
	migrate(t, db, files(first(), allows), of("newer"))
	migrate(t, db, files(first()), of("older"))
	if got := scan[string](t, db, `SELECT outbox.which()`); got != "newer" {
		t.Errorf("the function is of the %s code", got)
	}
}

// psql sets a savepoint before each statement where ON_ERROR_ROLLBACK is on.
func TestTheScriptIsAppliedAgainUnderASavepoint(t *testing.T) {
	db := open(t, pgtest.Database(t))
	script, err := SQL()
	noErr(t, err)
	run(t, db, script)
	want := scan[string](t, db, objects)
	run(t, db, "BEGIN; SAVEPOINT a; "+script+"; RELEASE a; COMMIT")
	if got := scan[string](t, db, objects); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// FuzzName: a schema's name is refused, or all of the outbox is in the schema of that name and
// nothing elsewhere.
func FuzzName(f *testing.F) {
	for _, s := range []string{"outbox", "a", "_", "select", "user", "public2", "task", "pg_x", "", "A", "a b", `a"b`, "a.b", "ä", "a\x00", "a;", "a'", "$1", `a\`,
		"a234567890123456789012345678901234567890123456789012345678901234", "a23456789012345678901234567890123456789012345678901234567890123", "outbox_outbox", "x_task", "information_schema"} {
		f.Add(s)
	}
	db := open(f, pgtest.Database(f))
	f.Fuzz(func(t *testing.T, name string) {
		script, err := SQL(Schema(name))
		if err != nil {
			return
		}
		tx, err := db.Begin()
		noErr(t, err)
		defer func() { _ = tx.Rollback() }()
		if scan[bool](t, tx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, name) {
			return // the app's own
		}
		const elsewhere = `SELECT (SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname NOT LIKE 'pg\_%' AND nspname <> $1)
			+ (SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname NOT LIKE 'pg\_%' AND nspname <> $1)`
		before := scan[int](t, tx, elsewhere, name)
		if _, err := tx.Exec(script); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		if after := scan[int](t, tx, elsewhere, name); after != before {
			t.Fatalf("%q: %d relations and functions are outside of the schema, want %d", name, after, before)
		}
		if _, err := tx.Exec(`INSERT INTO ` + quote(name) + `.task (task_type) VALUES ('T')`); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
	})
}
