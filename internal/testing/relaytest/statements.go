package relaytest

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
)

const module = "github.com/txoutbox/outbox/"

// Statements are those that constants of packages have, such as internal/upkeep, by the names in
// their comments: /* outbox: NAME */.
func Statements(packages ...string) map[string]string {
	s, out := source{}, map[string]string{}
	for _, pkg := range packages {
		for _, c := range s.constants(pkg) {
			text := s.text(pkg, c.file, c.value)
			if name, _, ok := strings.Cut(text, " */"); ok && strings.HasPrefix(name, "/* outbox: ") {
				name = strings.TrimPrefix(name, "/* outbox: ")
				if out[name] != "" && out[name] != text {
					panic("two statements are to " + name)
				}
				out[name] = text
			}
		}
	}
	return out
}

// overlaid are the files of go build -overlay, as of a mutant: their texts are read in place of the
// sources.
var overlaid = sync.OnceValue(func() map[string]string {
	var o struct{ Replace map[string]string }
	if name := os.Getenv("OUTBOX_TEST_OVERLAY"); name != "" {
		text, err := os.ReadFile(name)
		if err := errors.Join(err, json.Unmarshal(text, &o)); err != nil {
			panic(err)
		}
	}
	return o.Replace
})

// source has the constants of this module's packages, by the package and the name.
type source map[string]map[string]constant

type constant struct {
	file  *ast.File
	value ast.Expr
}

func (s source) constants(pkg string) map[string]constant {
	if s[pkg] != nil {
		return s[pkg]
	}
	_, here, _, _ := runtime.Caller(0)
	names, err := filepath.Glob(filepath.Join(filepath.Dir(here), "../../..", pkg, "*.go"))
	if err != nil || names == nil {
		panic(fmt.Sprintf("no source of %s: %v", pkg, err))
	}
	all := map[string]constant{}
	for _, name := range names {
		if other := overlaid()[name]; other != "" {
			name = other
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			panic(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) == len(spec.Names) {
				for i, ident := range spec.Names {
					all[ident.Name] = constant{file, spec.Values[i]}
				}
			}
			return true
		})
	}
	s[pkg] = all
	return all
}

// text is the value of an expression of texts and constants; "" of another.
func (s source) text(pkg string, file *ast.File, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.BinaryExpr:
		return s.text(pkg, file, e.X) + s.text(pkg, file, e.Y)
	case *ast.Ident:
		c := s.constants(pkg)[e.Name]
		return s.text(pkg, c.file, c.value)
	case *ast.SelectorExpr:
		name, _ := e.X.(*ast.Ident)
		for _, i := range file.Imports {
			path, _ := strconv.Unquote(i.Path.Value)
			if other, ours := strings.CutPrefix(path, module); ours && name != nil && filepath.Base(other) == name.Name {
				c := s.constants(other)[e.Sel.Name]
				return s.text(other, c.file, c.value)
			}
		}
	}
	return ""
}
