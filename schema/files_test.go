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
	if err != nil {
		t.Fatal(err)
	}
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
	reference := open(t, pgtest.Database(t))
	migrate(t, reference)
	want := describe(t, reference, "outbox")
	for tool, apply := range map[string]func(t *testing.T, url string, texts ...string){"psql": psql, "goose": goose} {
		for _, name := range []string{"outbox", "select"} {
			t.Run(tool+" "+name, func(t *testing.T) {
				url := pgtest.Database(t)
				script, err := SQL(Schema(name))
				if err != nil {
					t.Fatal(err)
				}
				if name == "outbox" {
					names, err := fs.Glob(FS(), "*.sql")
					if err != nil {
						t.Fatal(err)
					}
					for _, name := range names {
						text, err := fs.ReadFile(FS(), name)
						if err != nil {
							t.Fatal(err)
						}
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
				if err := Check(t.Context(), db, Schema(name)); err != nil {
					t.Error(err)
				}
				if got := describe(t, db, name); got != want {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
			})
		}
	}
}

func TestMigrateUnderAnotherNameIsTheSame(t *testing.T) {
	db := open(t, pgtest.Database(t))
	migrate(t, db)
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
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	for _, s := range statements {
		if _, err := tx.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
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
