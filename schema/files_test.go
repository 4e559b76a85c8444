package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	programs "github.com/txoutbox/outbox/internal/needs"
)

func TestEachFileRecordsItsVersion(t *testing.T) {
	db := open(t, pgtest.Database(t))
	for i := range migrations() {
		migrate(t, db, files(migrations()[:i+1]...))
		if got := scan[int](t, db, "SELECT max(version) FROM outbox.migration"); got != baseline+i {
			t.Fatalf("file %d: got version %d", i+1, got)
		}
	}
}

func TestTheTableOfVersionsIsAsInTheFirstFile(t *testing.T) {
	_, text, _ := strings.Cut(createMigrationTable, "\n")
	for part := range strings.SplitSeq(text, "$$;\n") {
		if !strings.Contains(first(), part) {
			t.Errorf("the first file does not contain\n%s", part)
		}
	}
}

// Whoever applies the files, and under whatever name, the result is the same, and Migrate has nothing to do.
func TestFilesByPsqlAndGooseAreTheSameAsMigrate(t *testing.T) {
	programs.CI(t)
	reference := open(t, pgtest.Database(t))
	migrate(t, reference)
	want := describe(t, reference, "outbox")
	tools := map[string]func(t *testing.T, url string, texts ...string){"psql": psql, "goose": goose}
	byDefault := []string{"psql outbox", "goose outbox", "psql select"}
	for _, name := range []string{"outbox", "select", "my_outbox", strings.Repeat("x", 63)} {
		for tool, apply := range tools {
			t.Run(tool+" "+name, func(t *testing.T) {
				if !slices.Contains(byDefault, tool+" "+name) {
					programs.Long(t)
				}
				url := pgtest.Database(t)
				script, err := SQL(name)
				if err != nil {
					t.Fatal(err)
				}
				texts := []string{script}
				if name == "outbox" {
					texts = append(migrations(), script)
				}
				apply(t, url, texts...)
				if tool == "psql" && os.Getenv("OUTBOX_TEST_LONG") == "" {
					texts = texts[len(texts)-1:]
				}
				apply(t, url, texts...) // does no harm
				db, w := watched(t, url)
				migrate(t, db, Schema(name))
				if got := w.writes(); len(got) > 0 {
					t.Errorf("Migrate wrote %q", got)
				}
				if err := Check(t.Context(), db, name); err != nil {
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
	if err := Check(t.Context(), db, "other"); !errors.Is(err, ErrNotMigrated) {
		t.Errorf("got %v, want ErrNotMigrated", err)
	}
}

// describe lists what a schema holds, with the schema's name as <name>.
func describe(t *testing.T, db *sql.DB, name string) string {
	t.Helper()
	d := scan[string](t, db, `WITH ns AS (SELECT oid FROM pg_namespace WHERE nspname = '`+name+`'),
rel AS (SELECT c.* FROM pg_class c JOIN ns ON c.relnamespace = ns.oid),
line(text) AS (
  SELECT format('%s %s %s %s', relkind, relname, reloptions, relacl) FROM rel
  UNION ALL SELECT format('%s.%s %s %s %s %s', r.relname, attname, format_type(atttypid, atttypmod), attnotnull, attidentity, pg_get_expr(adbin, adrelid))
    FROM pg_attribute a JOIN rel r ON r.oid = attrelid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE attnum > 0 AND relkind = 'r'
  UNION ALL SELECT format('%s %s', conname, pg_get_constraintdef(c.oid)) FROM pg_constraint c JOIN rel r ON r.oid = conrelid
  UNION ALL SELECT pg_get_indexdef(oid) FROM rel WHERE relkind = 'i'
  UNION ALL SELECT pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN rel r ON r.oid = tgrelid
  UNION ALL SELECT format('%s %s', pg_get_functiondef(p.oid), proacl) FROM pg_proc p JOIN ns ON pronamespace = ns.oid
  UNION ALL SELECT format('%s %s %s', r.relname, objsubid, description) FROM pg_description JOIN rel r ON r.oid = objoid
  UNION ALL SELECT format('version %s', version) FROM "`+name+`".migration)
SELECT string_agg(text, E'\n' ORDER BY text COLLATE "C") FROM line`)
	for _, written := range []string{`"` + name + `".`, name + "."} {
		d = strings.ReplaceAll(d, written, "<name>.")
	}
	return d
}

// psql applies a file as the comment in it says. Where there is no psql, its statements run as psql -1
// would run them.
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
		statements, err := gooseStatements(text)
		if err != nil {
			t.Fatal(err)
		}
		inTx(t, db, statements...)
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
// StatementBegin and StatementEnd, after the one line "-- +goose Up". Lines that start with -- are left out.
func gooseStatements(text string) (statements []string, err error) {
	var buffer strings.Builder
	up, whole := false, false
	for line := range strings.Lines(text) {
		annotation, annotated := strings.CutPrefix(strings.TrimSpace(line), "-- +goose ")
		comment := strings.HasPrefix(strings.TrimSpace(line), "--")
		code, _, _ := strings.Cut(line, "--")
		end := !whole && strings.HasSuffix(strings.TrimSpace(code), ";")
		switch {
		case annotated && annotation == "Up" && !up:
			up = true
			continue
		case annotated && annotation == "StatementBegin" && up && !whole && buffer.Len() == 0:
			whole = true
			continue
		case annotated && annotation == "StatementEnd" && whole:
			whole, end = false, true
		case annotated:
			return nil, fmt.Errorf("the annotation %s is out of place", annotation)
		case comment, buffer.Len() == 0 && strings.TrimSpace(line) == "":
			continue
		case !up:
			return nil, fmt.Errorf("before Up: %s", line)
		default:
			buffer.WriteString(line)
		}
		if end {
			statements = append(statements, buffer.String())
			buffer.Reset()
		}
	}
	if whole || buffer.Len() > 0 || len(statements) == 0 {
		return nil, fmt.Errorf("unfinished: %s", buffer.String())
	}
	return statements, nil
}
