package docblocks

import (
	"embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
)

//go:embed testdata
var preludes embed.FS

// form is how a block is written.
type form int

const (
	wholeFile form = iota
	declarations
	statements
)

// goFile is a block, or a prelude, as a file that can be type-checked.
type goFile struct {
	block   Block
	form    form
	ast     *ast.File
	own     []string // paths that it imports itself
	imports []string // with those that were added
}

// known are packages by the names that blocks use. Those of this repository come with them; see
// knownPackages.
var known = map[string]string{
	"bytes": "bytes", "context": "context", "sql": "database/sql", "errors": "errors", "fmt": "fmt", "http": "net/http", "json": "encoding/json", "log": "log", "os": "os",
	"signal": "os/signal", "slog": "log/slog", "syscall": "syscall", "testing": "testing", "time": "time", "strings": "strings", "rand": "math/rand/v2",
	"cron": "github.com/robfig/cron/v3", "pq": "github.com/lib/pq", "retry": "github.com/sethvargo/go-retry", "sqlx": "github.com/jmoiron/sqlx",
	"pgx": "github.com/jackc/pgx/v5", "pgxpool": "github.com/jackc/pgx/v5/pgxpool", "stdlib": "github.com/jackc/pgx/v5/stdlib",
	"otel": "go.opentelemetry.io/otel", "prometheus": "github.com/prometheus/client_golang/prometheus",
	"promhttp": "github.com/prometheus/client_golang/prometheus/promhttp",
	"bun":      "github.com/uptrace/bun", "chi": "github.com/go-chi/chi/v5", "goose": "github.com/pressly/goose/v3", "gorm": "gorm.io/gorm",
	"middleware": "github.com/go-chi/chi/v5/middleware", "iofs": "github.com/golang-migrate/migrate/v4/source/iofs", "migrate": "github.com/golang-migrate/migrate/v4",
}

const module = "github.com/txoutbox/outbox"

// knownPackages are known and, by their directory's name, the packages of the repository.
func knownPackages(root string) (byName map[string]string, err error) {
	byName = map[string]string{"outbox": module}
	for name, path := range known {
		byName[name] = path
	}
	files, err := filepath.Glob(filepath.Join(root, "*", "*.go"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if dir := filepath.Base(filepath.Dir(file)); !strings.HasSuffix(file, "_test.go") {
			byName[dir] = module + "/" + dir
		}
	}
	return byName, nil
}

// parse finds out how a block is written, and adds the imports that it needs.
func parse(fset *token.FileSet, b Block, byName map[string]string) (*goFile, error) {
	at := fmt.Sprintf("//line %s:%d\n", b.Page, b.Line)
	try := func(before, after string) (*ast.File, error) {
		return parser.ParseFile(fset, "block.go", before+at+b.Text+after, parser.SkipObjectResolution)
	}
	f := &goFile{block: b}
	var err error
	if f.ast, err = try("", ""); err == nil {
		f.form = wholeFile
	} else if f.ast, err = try("package p\n", ""); err == nil {
		f.form = declarations
	} else {
		asDeclarations := err
		f.form = statements
		if f.ast, err = try("package p\nfunc _() error {\n", "\nreturn nil\n}\n"); err != nil {
			return nil, fmt.Errorf("neither declarations (%w) nor statements (%w)", asDeclarations, err)
		}
	}
	has := map[string]bool{}
	for _, i := range f.ast.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		f.own = append(f.own, path)
		name := path[strings.LastIndex(path, "/")+1:]
		for n, p := range byName {
			if p == path {
				name = n
			}
		}
		if i.Name != nil {
			name = i.Name.Name
		}
		has[name] = true
	}
	f.imports = append(f.imports, f.own...)
	if f.form == wholeFile {
		return f, nil
	}
	var added []ast.Spec
	ast.Inspect(f.ast, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := s.X.(*ast.Ident); ok && byName[x.Name] != "" && ast.IsExported(s.Sel.Name) && !has[x.Name] {
			has[x.Name] = true
			f.imports = append(f.imports, byName[x.Name])
			added = append(added, &ast.ImportSpec{Name: ast.NewIdent(x.Name), Path: &ast.BasicLit{Kind: token.STRING, Value: `"` + byName[x.Name] + `"`}})
		}
		return true
	})
	if len(added) > 0 {
		d := &ast.GenDecl{Tok: token.IMPORT, Lparen: 1, Specs: added}
		f.ast.Decls = append([]ast.Decl{d}, f.ast.Decls...)
		for _, s := range added {
			f.ast.Imports = append(f.ast.Imports, s.(*ast.ImportSpec))
		}
	}
	return f, nil
}

// without is a copy of the file that has no declaration of the given names, which it adds its own
// to. Methods go with their types.
func (f *goFile) without(taken map[string]bool) *ast.File {
	out := *f.ast
	out.Decls = nil
	mine := map[string]bool{}
	keep := func(name string) bool {
		if name != "_" && taken[name] {
			return false
		}
		mine[name] = true
		return true
	}
	for _, d := range f.ast.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				if !taken[receiver(d.Recv.List[0].Type)] {
					out.Decls = append(out.Decls, d)
				}
			} else if keep(name) {
				out.Decls = append(out.Decls, d)
			}
		case *ast.GenDecl:
			kept := *d
			kept.Specs = nil
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					if keep(s.Name.Name) {
						kept.Specs = append(kept.Specs, s)
					}
				case *ast.ValueSpec:
					if keep(s.Names[0].Name) {
						kept.Specs = append(kept.Specs, s)
					}
				default:
					kept.Specs = append(kept.Specs, s)
				}
			}
			if len(kept.Specs) > 0 {
				out.Decls = append(out.Decls, &kept)
			}
		}
	}
	for name := range mine {
		taken[name] = true
	}
	return &out
}

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
