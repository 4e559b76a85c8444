package examples_test

import (
	"bytes"
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
	"strings"
	"sync"
	"testing"

	"github.com/txoutbox/outbox/internal/relaytest"
)

// compile type-checks Go blocks, and returns what is wrong with them.
func compile(t *testing.T, blocks []block) (problems []string) {
	fset := token.NewFileSet()
	text, err := os.ReadFile("testdata/context.go")
	relaytest.Must(err)
	context, err := parser.ParseFile(fset, "context.go", text, parser.SkipObjectResolution)
	relaytest.Must(err)
	imports := string(text[fset.Position(context.Decls[0].Pos()).Offset:fset.Position(context.Decls[0].End()).Offset])
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

// exports finds what the compiler exported of the packages that blocks can import: those of this
// module's go.mod and of the standard library.
func exports(t *testing.T) func(path string) (io.ReadCloser, error) {
	files, err := exported()
	relaytest.Must(err)
	return func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, errors.New("testdata/context.go does not import it")
		}
		return os.Open(files[path])
	}
}

var exported = sync.OnceValues(func() (map[string]string, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "testdata/context.go")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("go list: %w\n%s", err, &stderr)
	}
	return files, nil
})
