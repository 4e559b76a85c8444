package repotest

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// names are what the documentation can name. The keys are "relay.Config.Order" and, for what is
// named without its package, ".Config.Order".
type names struct {
	api     map[string]bool
	tests   map[string]string // their comments; of Go's forms: Test…, Benchmark…, Fuzz…, Example…
	outputs map[string]bool   // examples whose output is checked
	strings map[string]bool   // in tests: the names of subtests are among them
}

var readNames = sync.OnceValues(func() (names, error) {
	n := names{map[string]bool{}, map[string]string{}, map[string]bool{}, map[string]bool{}}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" ||
			strings.Contains(filepath.ToSlash(path), "/testdata/") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		pkg := strings.TrimSuffix(file.Name.Name, "_test")
		if strings.HasSuffix(path, "_test.go") {
			n.addTests(pkg, file)
		} else if !strings.Contains(path, "internal") && pkg != "main" {
			n.addAPI(pkg, file)
		}
		return nil
	})
	return n, err
})

func allNames(t *testing.T) names {
	t.Helper()
	n, err := readNames()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (n names) addTests(pkg string, file *ast.File) {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && testName.MatchString(f.Name.Name) {
			n.tests[pkg+"."+f.Name.Name] = f.Doc.Text()
			n.tests["."+f.Name.Name] += f.Doc.Text()
		}
	}
	for _, e := range doc.Examples(file) {
		n.outputs[pkg+".Example"+e.Name] = e.Output != ""
		n.outputs[".Example"+e.Name] = e.Output != "" || n.outputs[".Example"+e.Name]
	}
	ast.Inspect(file, func(node ast.Node) bool {
		if l, ok := node.(*ast.BasicLit); ok && l.Kind == token.STRING {
			s, _ := strconv.Unquote(l.Value)
			n.strings[s] = true
		}
		return true
	})
}

// addAPI adds functions, methods, types with their fields and methods, constants and variables.
func (n names) addAPI(pkg string, file *ast.File) {
	add := func(name string) { n.api[pkg+"."+name], n.api["."+name] = true, true }
	prefix := ""
	ast.Inspect(file, func(node ast.Node) bool {
		switch d := node.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = receiver(d.Recv.List[0].Type) + "." + name
			}
			add(name)
			return false
		case *ast.TypeSpec:
			add(d.Name.Name)
			prefix = d.Name.Name + "."
		case *ast.Field:
			for _, name := range d.Names {
				add(prefix + name.Name)
			}
			return false
		case *ast.ValueSpec:
			for _, name := range d.Names {
				add(name.Name)
			}
		}
		return true
	})
}

// receiver is the name of a receiver's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
