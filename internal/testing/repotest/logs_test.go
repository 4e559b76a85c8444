package repotest

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// notProduction are the modules of go.work that no app and no operator runs.
var notProduction = []string{"./examples", "./internal/testing/chaos", "./dashboard/browsertest"}

// production are the packages of all modules of go.work whose code apps and operators run. What another
// module imports from outside of the repository has no types.
func production(t *testing.T) (out []*goPackage) {
	t.Helper()
	for _, p := range packages(t) {
		if !strings.Contains(p.ImportPath, "/internal/testing/") {
			out = append(out, p)
		}
	}
	modules := regexp.MustCompile(`(?m)^\t(\./\S+)$`).FindAllStringSubmatch(read(t, "go.work"), -1)
	if len(modules) < 10 {
		t.Fatalf("go.work has the modules %q", modules)
	}
	for _, m := range modules {
		if slices.Contains(notProduction, m[1]) {
			continue
		}
		err := filepath.WalkDir(m[1], func(dir string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return err
			}
			if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil && dir != filepath.Clean(m[1]) && dir != m[1] {
				return fs.SkipDir // a module of its own
			}
			if found, err := build.ImportDir(dir, 0); err == nil {
				out = append(out, parsed(t, dir, found.GoFiles))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// parsed is a package whose imports may be unknown.
func parsed(t *testing.T, dir string, files []string) *goPackage {
	t.Helper()
	p := &goPackage{ImportPath: module + "/" + filepath.ToSlash(dir), Dir: dir, GoFiles: files, info: &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{}}}
	for _, name := range files {
		file, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		p.files = append(p.files, file)
	}
	tolerant := &types.Config{Importer: exported, Error: func(error) {}}
	p.types, _ = tolerant.Check(p.ImportPath, fset, p.files, p.info)
	return p
}

const pageOfRecords = "docs/reference/log-records.md"

var rowOfRecords = regexp.MustCompile("^\\| `([^`|]+)` \\| ([^|]+) \\| ([^|]+) \\| ([^|]+) \\| ([^|]+) \\|$")

// begin is how the row of a record begins, up to its meaning.
func (r *record) begin() string {
	attrs := "none"
	if len(r.always) > 0 {
		attrs = "`" + strings.Join(r.always, "`, `") + "`"
	}
	if len(r.some) > 0 {
		attrs += ", (`" + strings.Join(r.some, "`, `") + "`)"
	}
	return fmt.Sprintf("| `%s` | %s | %s |", r.text, strings.Join(r.levels, ", "), attrs)
}

// Each record that the code can write has a row with its level and its attributes, and each row a record.
func TestEachLogRecordHasARow(t *testing.T) {
	t.Parallel()
	code, faults := records(production(t))
	for _, f := range faults {
		t.Error(f)
	}
	if len(code) < 60 {
		t.Errorf("the code has %d records, want 60 at least", len(code))
	}
	rows := map[string]string{} // how they begin
	last := ""                  // of the present table
	for line := range strings.Lines(read(t, pageOfRecords)) {
		line = strings.TrimSpace(line)
		m := rowOfRecords.FindStringSubmatch(line)
		if m == nil {
			if strings.HasPrefix(line, "| `") {
				t.Errorf("the row does not have five cells, all filled: %s", line)
			}
			last = ""
			continue
		}
		if rows[m[1]] != "" {
			t.Errorf("%q has two rows", m[1])
		}
		if place := strings.ToLower(m[1]); place < last {
			t.Errorf("the row of %q does not stand in the order of the texts", m[1])
		} else {
			last = place
		}
		rows[m[1]] = fmt.Sprintf("| `%s` | %s | %s |", m[1], m[2], m[3])
	}
	for _, text := range slices.Sorted(maps.Keys(code)) {
		if want := code[text].begin(); rows[text] != want {
			t.Errorf("%s has the row %q, want one that begins with\n%s", pageOfRecords, rows[text], want)
		}
		delete(rows, text)
	}
	for text := range rows {
		t.Errorf("%s has a row of %q, which no code writes", pageOfRecords, text)
	}
}

const sampleOfRecords = `package sample

import (
	"context"
	"log/slog"
)

type outcome int

var outcomes = [...]struct {
	record string
	tells  bool
}{
	{}, {record: "gone"}, {tells: true, record: "told"},
}

func (o outcome) Record() string { return outcomes[o].record }
func (o outcome) Tells() bool    { return outcomes[o].tells }

const lead = "x: "

type part struct{ log *slog.Logger }

func (p part) table(o outcome, err error) {
	attrs := []any{"a", 1}
	if o.Tells() {
		attrs = append(attrs, "error", err)
	}
	p.log.Info(lead+o.Record(), attrs...)
}

func (p part) levels(n int, err error) {
	log, text := p.log.Error, lead+"one"
	if n == 1 {
		text = lead + "t"
		text += "wo"
		log = p.log.Warn
	}
	log(text+suffix(n), errorAttr(err))
}

func suffix(n int) string {
	switch n {
	case 3:
		return ", often"
	}
	return ""
}

func errorAttr(err error) slog.Attr {
	text := slog.String("error", err.Error())
	if err == nil {
		return slog.Group("", text, slog.String("stack", ""))
	}
	return text
}

func (p part) twice(err error) {
	level, text := slog.LevelDebug, "x: done"
	if err != nil {
		level, text = slog.LevelInfo, "x: failed"
	}
	attrs := []slog.Attr{slog.Int("n", 1)}
	if err != nil {
		attrs = append(attrs, slog.Group("g", "k", 1))
	}
	p.log.LogAttrs(context.Background(), level, text, attrs...)
}

func (p part) wrapper(text string, attrs ...any) { p.log.Error(text, attrs...) }

func (p part) calls() {
	go func() { p.wrapper("x: by a wrapper", "k", 1) }()
	for {
		select {
		default:
			slog.Default().WarnContext(context.Background(), "x: in a loop")
		}
	}
}
`

const faultySample = `package sample

import (
	"log/slog"
	"unknown.example/unknown"
)

func unclear(l *slog.Logger, texts []string) {
	l.Info(texts[0])
	l.With("a", 1).Info("with")
	unknown.Logger.Warn("unknown")
}
`

func TestRecordsAreReadFromVariablesTablesAndFunctions(t *testing.T) {
	t.Parallel()
	packages(t)
	sample := func(text string) (map[string]*record, []string) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "sample.go"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return records([]*goPackage{parsed(t, dir, []string{"sample.go"})})
	}
	code, faults := sample(sampleOfRecords)
	var got []string
	for _, text := range slices.Sorted(maps.Keys(code)) {
		got = append(got, code[text].begin())
	}
	want := []string{
		"| `x: by a wrapper` | ERROR | `k` |",
		"| `x: done` | DEBUG | `n` |",
		"| `x: failed` | INFO | `n`, `g.k` |",
		"| `x: gone` | INFO | `a` |",
		"| `x: in a loop` | WARN | none |",
		"| `x: one` | ERROR | `error`, (`stack`) |",
		"| `x: one, often` | ERROR | `error`, (`stack`) |",
		"| `x: told` | INFO | `a`, `error` |",
		"| `x: two` | WARN | `error`, (`stack`) |",
		"| `x: two, often` | WARN | `error`, (`stack`) |",
	}
	if !slices.Equal(got, want) || faults != nil {
		t.Errorf("got\n%s\nwant\n%s\nfaults %q", strings.Join(got, "\n"), strings.Join(want, "\n"), faults)
	}
	if _, faults := sample(faultySample); len(faults) != 3 {
		t.Errorf("got the faults %q, want one of each use", faults)
	}
}
