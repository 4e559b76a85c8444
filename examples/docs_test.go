// Package examples_test checks the blocks of code in the documentation: Go compiles and SQL runs.
//
// A Go block is a whole file, declarations, or statements of a function that returns an error. It
// may use the blocks of declarations above it on its page, and what testdata/context.go imports and
// declares. A SQL block runs after testdata/context.sql; one with parameters ($1) is prepared. A
// line that is only … is left out, and RETURNING … returns all columns. The module bench/moves checks
// the pages on moves from River, asynq and gue.
package examples_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

const root = ".." // of the repository

// block is a fenced block of a page.
type block struct {
	page string // its path from the root
	line int    // of the first line of text
	lang string // what follows the fence; may be ""
	text string
}

func TestTheCodeOfTheDocumentationWorks(t *testing.T) {
	blocks := map[string][]block{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "[apt]*/*/README.md"} { // of optional modules too
		pages, err := filepath.Glob(filepath.Join(root, pattern))
		relaytest.Must(err)
		for _, path := range pages {
			if slices.Contains([]string{"river.md", "asynq.md", "gue.md"}, filepath.Base(path)) {
				continue
			}
			text, err := os.ReadFile(path)
			relaytest.Must(err)
			page, err := filepath.Rel(root, path)
			relaytest.Must(err)
			for _, b := range parse(filepath.ToSlash(page), string(text)) {
				blocks[b.lang] = append(blocks[b.lang], b)
			}
		}
	}
	for lang, check := range map[string]func(*testing.T, []block) []string{"go": compile, "sql": runSQL} {
		t.Logf("%d blocks of %q", len(blocks[lang]), lang)
		for _, problem := range check(t, blocks[lang]) {
			t.Error(problem)
		}
		if len(blocks[lang]) == 0 {
			t.Errorf("no block of %s is found", lang)
		}
	}
}

// parse returns the blocks of one page.
func parse(page, text string) (out []block) {
	inside := false
	n := 0
	for line := range strings.Lines(text) {
		n++
		lang, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && !inside:
			out = append(out, block{page: page, line: n + 1, lang: lang})
		case !fence && inside:
			out[len(out)-1].text += leaveOut(line)
		}
		inside = inside != fence
	}
	return out
}

var onlyDots = regexp.MustCompile(`^[ \t]*…[ \t]*\n`)

func leaveOut(line string) string {
	return strings.ReplaceAll(onlyDots.ReplaceAllString(line, "\n"), "RETURNING …", "RETURNING *")
}

// compile type-checks Go blocks, and returns what is wrong with them.
func compile(t *testing.T, blocks []block) (problems []string) {
	fset := token.NewFileSet()
	text, err := os.ReadFile("testdata/context.go")
	relaytest.Must(err)
	context, err := parser.ParseFile(fset, "context.go", text, parser.SkipObjectResolution)
	relaytest.Must(err)
	imports := string(text[fset.Position(context.Decls[0].Pos()).Offset:fset.Position(context.Decls[0].End()).Offset])
	for _, path := range optional() {
		imports += fmt.Sprintf("\nimport outbox%s %q", filepath.Base(path), path)
	}
	files := make([]*ast.File, len(blocks))
	for i, b := range blocks {
		if files[i] = parseGo(fset, b, imports); files[i] == nil {
			problems = append(problems, fmt.Sprintf("%s:%d: neither declarations nor statements: %s", b.page, b.line, b.text))
		}
	}
	compiled := importer.ForCompiler(fset, "gc", exports(t))
	for i, file := range files {
		if file == nil {
			continue
		}
		// The first declaration of a name counts. The others are errors in a file that is not the
		// block's.
		with := []*ast.File{file}
		if file.Name.Name == "context" {
			for j := i - 1; j >= 0 && blocks[j].page == blocks[i].page; j-- {
				if files[j] != nil && files[j].Name.Name == "context" {
					with = append(with, files[j])
				}
			}
			with = append(with, context)
		}
		config := types.Config{Importer: compiled, Error: func(err error) {
			var e types.Error
			if !errors.As(err, &e) {
				t.Fatal(err)
			}
			at := fset.Position(e.Pos)
			inStatements := isStatements(file) && e.Soft // such as a variable that is shown and not used
			if at.Filename == blocks[i].page && fset.File(e.Pos) == fset.File(file.Package) && !inStatements &&
				!strings.HasPrefix(e.Msg, "\t") {
				problems = append(problems, fmt.Sprintf("%s:%d: %s", at.Filename, at.Line, e.Msg))
			}
		}}
		_, _ = config.Check(file.Name.Name, fset, with, nil) // its error is the first of those
	}
	return problems
}

// parseGo returns nil for a block that is no Go. A block that is no whole file becomes a file of
// package context.
func parseGo(fset *token.FileSet, b block, imports string) *ast.File {
	if strings.HasPrefix(strings.TrimSpace(b.text), "import ") {
		imports = ""
	}
	at := fmt.Sprintf("\n//line %s:%d\n", b.page, b.line)
	for _, text := range []string{
		at + b.text,
		"package context\n" + imports + at + b.text,
		"package context\n" + imports + "\nfunc _() error {" + at + b.text + "\nreturn nil\n}",
	} {
		if file, err := parser.ParseFile(fset, "block", text, parser.SkipObjectResolution); err == nil {
			return file
		}
	}
	return nil
}

// isStatements tells a file that parseGo made of statements.
func isStatements(file *ast.File) bool {
	f, ok := file.Decls[len(file.Decls)-1].(*ast.FuncDecl)
	return ok && f.Name.Name == "_"
}

// exports finds what the compiler exported of the packages that blocks can import: what
// testdata/context.go imports, the modules of optional, and what these import.
func exports(t *testing.T) func(path string) (io.ReadCloser, error) {
	files, err := exported()
	relaytest.Must(err)
	return func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, errors.New("neither testdata/context.go imports it nor go.work lists it")
		}
		return os.Open(files[path])
	}
}

var exported = sync.OnceValues(func() (map[string]string, error) {
	files := map[string]string{}
	for _, packages := range [][]string{{"testdata/context.go"}, optional()} {
		cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"},
			packages...)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		for line := range strings.Lines(string(out)) {
			path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
			files[path] = file
		}
		if len(out) == 0 {
			return nil, fmt.Errorf("go list: %w\n%s", err, &stderr)
		}
	}
	return files, nil
})

// optional are the import paths of the modules in adapter/, publish/ and telemetry/.
func optional() (paths []string) {
	work, err := os.ReadFile("../go.work")
	relaytest.Must(err)
	for _, found := range regexp.MustCompile(`\n\t\.(/(adapter|publish|telemetry)/\w+)`).FindAllSubmatch(work, -1) {
		paths = append(paths, "github.com/txoutbox/outbox"+string(found[1]))
	}
	if len(paths) < 5 {
		panic(fmt.Sprintf("go.work lists %q", paths))
	}
	return paths
}

var parameter = regexp.MustCompile(`\$[1-9]`)

// runSQL runs SQL blocks, each in a transaction that is rolled back, and returns what is wrong.
func runSQL(t *testing.T, blocks []block) (problems []string) {
	context, err := os.ReadFile("testdata/context.sql")
	relaytest.Must(err)
	roles, err := schema.RolesSQL()
	relaytest.Must(err)
	db, err := sql.Open("postgres", pgtest.Database(t))
	relaytest.Must(err)
	defer db.Close()
	relaytest.Must(schema.Migrate(t.Context(), db))
	for _, b := range blocks {
		tx, err := db.BeginTx(t.Context(), nil)
		relaytest.Must(err)
		if _, err := tx.Exec(roles + string(context)); err != nil {
			t.Fatal(err)
		}
		if parameter.MatchString(b.text) {
			_, err = tx.Prepare(strings.TrimSuffix(strings.TrimSpace(b.text), ";"))
		} else {
			_, err = tx.Exec(b.text)
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s:%d: %v", b.page, b.line, err))
		}
		relaytest.Must(tx.Rollback())
	}
	return problems
}
