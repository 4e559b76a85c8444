package outbox_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// coreFiles are the files of the library itself with the extension, without tests.
func coreFiles(t *testing.T, extension string) (files []string) {
	t.Helper()
	for _, dir := range []string{".", "admin", "dashboard", "doctor", "handlers", "outboxtest", "relay", "schema"} {
		found, err := filepath.Glob(filepath.Join(dir, "*"+extension))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, slices.DeleteFunc(found, func(name string) bool { return strings.HasSuffix(name, "_test.go") })...)
	}
	if len(files) == 0 {
		t.Fatalf("no %s files: is the test's working directory the module's?", extension)
	}
	return files
}

// poolMethods are what the library may call on a *sql.DB or *sqlx.DB. All others run a statement, and database/sql
// runs it a second time when the driver says ErrBadConn, which lib/pq does also after the server ran it.
var poolMethods = []string{"Conn", "BeginTx", "BeginTxx", "Stats", "DriverName"}

// poolCalls finds calls of other methods on anything in a package that is declared as a pool.
func poolCalls(files map[string]*ast.File, fset *token.FileSet) (found []string) {
	pools := map[string]bool{}
	isPool := func(e ast.Expr) bool {
		star, ok := e.(*ast.StarExpr)
		if !ok {
			return false
		}
		s, ok := star.X.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		pkg, ok := s.X.(*ast.Ident)
		return ok && (pkg.Name == "sql" || pkg.Name == "sqlx") && s.Sel.Name == "DB"
	}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				if isPool(n.Type) {
					if len(n.Names) == 0 {
						pools["DB"] = true // embedded
					}
					for _, name := range n.Names {
						pools[name.Name] = true
					}
				}
			case *ast.ValueSpec:
				if n.Type != nil && isPool(n.Type) {
					for _, name := range n.Names {
						pools[name.Name] = true
					}
				}
			}
			return true
		})
	}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			method, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			var on string
			switch x := method.X.(type) {
			case *ast.Ident:
				on = x.Name
			case *ast.SelectorExpr:
				on = x.Sel.Name
			}
			if pools[on] && ast.IsExported(method.Sel.Name) && method.Sel.Name != "DB" && !slices.Contains(poolMethods, method.Sel.Name) {
				found = append(found, fmt.Sprintf("%s: %s.%s", fset.Position(method.Pos()), on, method.Sel.Name))
			}
			return true
		})
	}
	return found
}

func TestNoStatementGoesThroughAPoolWhichMayRunItTwice(t *testing.T) {
	t.Parallel()
	packages := map[string]map[string]*ast.File{}
	fset := token.NewFileSet()
	for _, name := range coreFiles(t, ".go") {
		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Dir(name)
		if packages[dir] == nil {
			packages[dir] = map[string]*ast.File{}
		}
		packages[dir][name] = file
	}
	for _, files := range packages {
		for _, call := range poolCalls(files, fset) {
			t.Errorf("%s: use a transaction or a held *sql.Conn", call)
		}
	}
	// The check itself finds what it should.
	bad, err := parser.ParseFile(fset, "bad.go", `package bad
		type held struct { db *sql.DB; other *sql.Conn }
		func (h held) f(pool *sqlx.DB) { h.db.Exec(""); pool.MustExec(""); h.db.QueryRowContext(nil, ""); h.other.ExecContext(nil, ""); h.db.Conn(nil) }`, 0)
	if err != nil {
		t.Fatal(err)
	}
	if found := poolCalls(map[string]*ast.File{"bad.go": bad}, fset); len(found) != 3 {
		t.Errorf("the check found %q in an example, want 3 calls", found)
	}
}

var (
	sqlComment  = regexp.MustCompile(`(?s)/\*.*?\*/|--[^\n]*`)
	sqlLocks    = regexp.MustCompile(`(?is)\bfor\s+(no\s+key\s+update|update|share|key\s+share)\b`)
	sqlSkips    = regexp.MustCompile(`(?i)\bskip\s+locked\b`)
	sqlSubquery = regexp.MustCompile(`(?i)\b(using|in|any|exists|as)\s*\(`)
	sqlStart    = regexp.MustCompile(`(?s)(?:^|;)\s*([A-Z]+)\s+([A-Za-z_]+)(\s*;|\s+AS\b)?`) // keywords are in capitals
	sqlWords    = map[string]*regexp.Regexp{
		"ORDER BY random() reads the whole lane":          regexp.MustCompile(`(?i)\border\s+by\s+random\s*\(`),
		"advisory locks break behind a pooler":            regexp.MustCompile(`(?i)\bpg_(try_)?advisory`),
		"WITH TIES locks more than its limit":             regexp.MustCompile(`(?i)\bwith\s+ties\b`),
		"set_config for a session breaks behind a pooler": regexp.MustCompile(`(?i)\bset_config\s*\([^()]*,\s*false\s*\)`),
	}
)

// forbiddenSQL says what is wrong with a text that may be SQL.
func forbiddenSQL(text string) (found []string) {
	text = strings.TrimSpace(sqlComment.ReplaceAllString(text, " "))
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

// literals are the string constants of a Go file: joined where they are added to each other.
func literals(t *testing.T, name string) (out []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var text func(e ast.Expr) string
	text = func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			if s, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
				return s
			}
		case *ast.BinaryExpr:
			return text(e.X) + text(e.Y)
		}
		return " x " // what is put in at run time
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.ADD {
				out = append(out, text(n))
				return false
			}
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				out = append(out, text(n))
			}
		}
		return true
	})
	return out
}

// putsBack are the files that put a session back as the pool made it, which is right behind a pooler as well: what a handler
// has set there would reach others.
var putsBack = map[string]string{
	"internal/pg/session.go": "set_config for a session breaks behind a pooler",
	"schema/00024_runs.sql":  "advisory locks break behind a pooler",
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
	for _, name := range coreFiles(t, ".go") {
		for _, text := range literals(t, name) {
			check(name, text)
		}
	}
	err := fs.WalkDir(os.DirFS("."), "schema", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, ".sql") {
			return err
		}
		text, err := os.ReadFile(name)
		check(name, string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if statements == 0 {
		t.Error("no statement with SKIP LOCKED was found: the check does not see the claim")
	}
}

func TestTheLintOfSQLFindsTheFormsThatAreKnownToBreak(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`SELECT 1 FROM t ORDER BY  Random () LIMIT 1`,
		"/* claim */\nDELETE FROM t USING (SELECT id FROM (SELECT 1) x LIMIT 1 FOR UPDATE SKIP LOCKED) s WHERE t.id = s.id",
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
		`WITH c AS MATERIALIZED (SELECT id FROM t LIMIT 1 FOR UPDATE SKIP LOCKED) DELETE FROM t USING c WHERE t.id = c.id`,
		"UPDATE t\nSET a = 1 WHERE b IN (SELECT 1)", "SET LOCAL lock_timeout = 1", "SET CONSTRAINTS ALL IMMEDIATE", "LISTEN works not; listen to it", "set lock_timeout: %w",
	} {
		if found := forbiddenSQL(text); len(found) != 0 {
			t.Errorf("found %q in %s", found, text)
		}
	}
}
