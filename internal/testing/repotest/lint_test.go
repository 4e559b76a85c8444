package repotest

import (
	"errors"
	"go/constant"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// poolMethods are what the library may call on a *sql.DB or *sqlx.DB. All others run a statement,
// and database/sql runs it a second time when the driver says ErrBadConn, which lib/pq does also
// after the server ran it.
var poolMethods = []string{"Conn", "BeginTx", "BeginTxx", "Beginx", "Stats", "DriverName", "Close"}

// poolCalls are the uses of other methods of pools.
func (p *goPackage) poolCalls() (found []string) {
	for at, s := range p.info.Selections {
		f, ok := s.Obj().(*types.Func)
		if !ok || slices.Contains(poolMethods, f.Name()) {
			continue
		}
		switch f.Signature().Recv().Type().String() {
		case "*database/sql.DB", "*github.com/jmoiron/sqlx.DB":
			found = append(found, fset.Position(at.Pos()).String()+": "+f.Name())
		}
	}
	return found
}

func TestNoStatementGoesThroughAPoolWhichMayRunItTwice(t *testing.T) {
	t.Parallel()
	for _, p := range corePackages(t) {
		for _, call := range p.poolCalls() {
			t.Errorf("%s: use a transaction or a held *sql.Conn", call)
		}
	}
}

var (
	sqlComment  = regexp.MustCompile(`(?s)/\*.*?\*/|--[^\n]*`)
	sqlLocks    = regexp.MustCompile(`(?is)\bfor\s+(no\s+key\s+update|update|share|key\s+share)\b`)
	sqlSkips    = regexp.MustCompile(`(?i)\bskip\s+locked\b`)
	sqlSubquery = regexp.MustCompile(`(?i)\b(using|in|any|exists|as)\s*\(`)
	sqlStart    = regexp.MustCompile(`(?s)(?:^\n*|;\s*)([A-Z]+)\s+([A-Za-z_]+)(\s*;|\s+AS\b)?`) // keywords are in capitals
	sqlWords    = map[string]*regexp.Regexp{
		"ORDER BY random() reads the whole lane":          regexp.MustCompile(`(?i)\border\s+by\s+random\s*\(`),
		"advisory locks break behind a pooler":            regexp.MustCompile(`(?i)\bpg_(try_)?advisory`),
		"WITH TIES locks more than its limit":             regexp.MustCompile(`(?i)\bwith\s+ties\b`),
		"set_config for a session breaks behind a pooler": regexp.MustCompile(`(?i)\bset_config\s*\([^()]*,\s*false\s*\)`),
	}
)

// forbiddenSQL says what is wrong with a text that may be SQL.
func forbiddenSQL(text string) (found []string) {
	text = sqlComment.ReplaceAllString(text, "")
	for why, word := range sqlWords {
		if word.MatchString(text) {
			found = append(found, why)
		}
	}
	for _, at := range sqlSubquery.FindAllStringSubmatchIndex(text, -1) {
		inner := parenthesized(text[at[1]:])
		switch keyword := strings.ToLower(text[at[2]:at[3]]); {
		case keyword == "as" && sqlSkips.MatchString(inner):
			found = append(found, "a CTE that locks must say MATERIALIZED")
		case (keyword == "using" || keyword == "in") && sqlLocks.MatchString(inner):
			found = append(found, "a locking sub-select in "+strings.ToUpper(keyword)+" takes more than its LIMIT")
		}
	}
	for _, m := range sqlStart.FindAllStringSubmatch(text+";", -1) {
		switch m[1] {
		case "SET":
			if !slices.Contains([]string{"LOCAL", "CONSTRAINTS", "TRANSACTION"}, m[2]) {
				found = append(found, "SET for a session breaks behind a pooler")
			}
		case "LISTEN", "UNLISTEN", "PREPARE", "DEALLOCATE", "DISCARD":
			if m[3] != "" { // else it is prose
				found = append(found, m[1]+" breaks behind a pooler")
			}
		}
	}
	return found
}

// parenthesized is the beginning of text up to the parenthesis that closes it.
func parenthesized(text string) string {
	depth := 1
	for i, c := range text {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth == 0 {
			return text[:i]
		}
	}
	return text
}

// putsBack are the files that put a session back as the pool made it, which is right behind a
// pooler as well: what a handler has set there would reach others.
var putsBack = map[string]string{
	"internal/pg/session.go":    "set_config for a session breaks behind a pooler",
	"schema/functions/runs.sql": "advisory locks break behind a pooler",
}

func TestSQLHasNoneOfTheFormsThatAreKnownToBreak(t *testing.T) {
	t.Parallel()
	statements := 0
	check := func(name, text string) {
		if sqlSkips.MatchString(text) {
			statements++
		}
		for _, why := range forbiddenSQL(text) {
			if why != putsBack[name] {
				t.Errorf("%s: %s:\n%s", name, why, text)
			}
		}
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range corePackages(t) {
		for e, tv := range p.info.Types {
			if tv.Value != nil && tv.Value.Kind() == constant.String {
				name, _ := filepath.Rel(here, fset.Position(e.Pos()).Filename)
				check(name, constant.StringVal(tv.Value))
			}
		}
	}
	files, err := filepath.Glob("schema/*.sql")
	functions, wrong := filepath.Glob("schema/functions/*.sql")
	if err := errors.Join(err, wrong); err != nil {
		t.Fatal(err)
	}
	files = append(files, functions...)
	for _, name := range files {
		check(name, read(t, name))
	}
	if statements == 0 || len(files) == 0 {
		t.Errorf("%d statements with SKIP LOCKED were found in Go, and %d files of SQL: the check does not see "+
			"the claim", statements, len(files))
	}
}

func TestTheLintOfSQLFindsTheFormsThatAreKnownToBreak(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`SELECT 1 FROM t ORDER BY  Random () LIMIT 1`,
		"/* claim */\nDELETE FROM t USING (SELECT id FROM (SELECT 1) x LIMIT 1 FOR UPDATE SKIP LOCKED) s WHERE t.id " +
			"= s.id",
		`DELETE FROM t WHERE id IN (SELECT id FROM t LIMIT $1 FOR NO KEY UPDATE)`,
		`WITH c AS (SELECT id FROM t LIMIT 1 FOR UPDATE SKIP LOCKED) DELETE FROM t USING c WHERE t.id = c.id`,
		`SELECT pg_try_advisory_xact_lock(1)`,
		`SET statement_timeout = 1`,
		"SELECT 1; SET SESSION lock_timeout = 1",
		`SELECT set_config('lock_timeout', $1, false)`,
		`LISTEN outbox`,
		`PREPARE p AS SELECT 1`,
		`SELECT id FROM t ORDER BY id FETCH FIRST 1 ROWS WITH TIES`,
	} {
		if len(forbiddenSQL(text)) != 1 {
			t.Errorf("found %q in %s", forbiddenSQL(text), text)
		}
	}
	for _, text := range []string{
		`WITH c AS MATERIALIZED (SELECT id FROM t LIMIT 1 FOR UPDATE SKIP LOCKED) DELETE FROM t USING c
			WHERE t.id = c.id`,
		"UPDATE t\nSET a = 1 WHERE b IN (SELECT 1)", "SET LOCAL lock_timeout = 1", "SET CONSTRAINTS ALL IMMEDIATE",
		"LISTEN works not; listen to it", "set lock_timeout: %w",
	} {
		if found := forbiddenSQL(text); len(found) != 0 {
			t.Errorf("found %q in %s", found, text)
		}
	}
}

// destroying finds an advice that begins with what cannot be undone: in a text of an error or a
// finding, or in one that SQL makes.
var destroying = regexp.MustCompile(`(?:^|[:;] |')(` +
	`(?i:drop|delete|truncate|discard|purge|remove|wipe|erase|empty) (?:the|it|its|one|them|all|that|this|those|each|every|a)\b[^"'\n]*` +
	`|(?:DROP (?:SCHEMA|TABLE|COLUMN|INDEX|DATABASE|OWNED)|DELETE FROM|TRUNCATE|ROLLBACK PREPARED)\b[^"'\n]*` +
	`|SELECT pg_(?:terminate_backend|drop_replication_slot)\b[^"'\n]*)`)

// harmless are those that lose nothing, and what is no advice.
var harmless = map[string]string{
	"DROP INDEX CONCURRENTLY ":           "an invalid index of REINDEX that no session builds: no statement uses it",
	"DROP INDEX CONCURRENTLY IF EXISTS ": "what admin.Client.Reindex does with it",
	"drop the invalid index %s: %w":      "an error of that",
}

// adviceToDestroy are the advices of a text that begin with what cannot be undone.
func adviceToDestroy(text string) (found []string) {
	if start := strings.TrimSpace(text); strings.HasPrefix(start, "/*") || strings.HasPrefix(start, "--") { // a statement: the texts in it
		text = strings.Join(sqlText.FindAllString(text, -1), "\n")
	}
	for _, m := range destroying.FindAllStringSubmatch(text, -1) {
		if harmless[m[1]] == "" {
			found = append(found, m[1])
		}
	}
	return found
}

var sqlText = regexp.MustCompile(`'(?:[^']|'')*'`)

// A message asks for what cannot be undone only after a way that loses nothing.
func TestNoMessageAdvisesToDestroyFirst(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		if strings.Contains(p.ImportPath, "/internal/") && !strings.Contains(p.ImportPath, "/internal/origin") {
			continue
		}
		for e, tv := range p.info.Types {
			if tv.Value != nil && tv.Value.Kind() == constant.String {
				for _, advice := range adviceToDestroy(constant.StringVal(tv.Value)) {
					t.Errorf("%s: %s", fset.Position(e.Pos()), advice)
				}
			}
		}
	}
	files, err := filepath.Glob("schema/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		for _, advice := range adviceToDestroy("--" + read(t, name)) {
			t.Errorf("%s: %s", name, advice)
		}
	}
}

func TestAdviceToDestroyIsFound(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"it cannot be migrated: drop the schema, with the tasks in it",
		"DELETE FROM outbox.task",
		"-- a check\nSELECT 'the slot is old', format('SELECT pg_drop_replication_slot(%L)', name)",
		"-- a migration\nRAISE EXCEPTION 'no' USING HINT = 'Drop the schema, with the tasks in it.'",
	} {
		if len(adviceToDestroy(text)) != 1 {
			t.Errorf("found %q in %s", adviceToDestroy(text), text)
		}
	}
	for _, text := range []string{
		"rename it, or drop the schema", "REINDEX INDEX i; or, if nobody needs it, DROP INDEX i",
		"/* purge */\nDELETE FROM outbox.task WHERE state = 'dead'",
	} {
		if found := adviceToDestroy(text); len(found) > 0 {
			t.Errorf("found %q in %s", found, text)
		}
	}
}
