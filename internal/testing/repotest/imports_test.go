package repotest

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// direction is the packages that a package may import, besides those of Go, and the reason.
type direction struct {
	why     string
	imports []string
}

const (
	pq       = "github.com/lib/pq" // arrays and literals
	goRetry  = "github.com/sethvargo/go-retry"
	sqlxPath = "github.com/jmoiron/sqlx"
)

// directions are of all packages that users import and of what these import. A package or an import
// that is not listed is refused.
var directions = map[string]direction{
	"": {"an app that only enqueues compiles no code that runs tasks",
		[]string{"/internal/codec", "/internal/copied", "/internal/counts", "/internal/guard", "/internal/intx", "/internal/key", "/internal/taskrun", "/internal/pgerr", "/internal/schemaname",
			"/internal/txcheck", "/internal/await", "/internal/wake", pq, sqlxPath}},
	"/handlers": {"an app declares its handlers without a relay or a database",
		[]string{"", "/internal/codec", "/internal/guard", "/internal/handler", "/internal/shape"}},
	"/relay": {"a relay starts all parts and knows no operator's tool",
		[]string{"", "/handlers", "/schema", "/internal/access", "/internal/guard", "/internal/handler", "/internal/origin", "/internal/pg",
			"/internal/pgerr", "/internal/schemaname",
			"/internal/plan", "/internal/call", "/internal/decide", "/internal/await", "/internal/leaserun", "/internal/progress",
			"/internal/report", "/internal/txrun", "/internal/schedule", "/internal/store", "/internal/tail", "/internal/upkeep",
			"/internal/wake", "/internal/writable", pq}},
	"/schema": {"a migration tool compiles nothing else",
		[]string{"/internal/pgerr", "/internal/schemaname", "/internal/writable", goRetry}},
	"/outboxtest": {"tests of apps run tasks as a relay does, with sqlx too",
		[]string{"", "/handlers", "/internal/apptx", "/internal/call", "/internal/codec", "/internal/decide", "/internal/handler", "/internal/taskrun", "/internal/leaserun", "/internal/pgerr", "/internal/origin", "/internal/pg", "/internal/plan",
			"/internal/progress", "/internal/txrun", "/internal/schemaname", "/internal/shape", "/relay",
			"/internal/store", pq, sqlxPath}},

	"/admin": {"operators read and change rows; a hand back is upkeep's takeover",
		[]string{"", "/internal/key", "/internal/origin", "/internal/pg", "/internal/pgerr", "/internal/schemaname", "/internal/tail", "/internal/timeline",
			"/internal/upkeep", "/internal/wake", pq}},
	"/doctor": {"checks read the schema, and use admin's types and the words for operators",
		[]string{"", "/admin", "/internal/access", "/internal/origin", "/internal/pg", "/internal/pgerr", "/internal/schemaname", "/internal/taskview", "/schema"}},
	"/dashboard": {"pages read and act through admin alone",
		[]string{"", "/admin", "/internal/codec", "/internal/pgerr", "/internal/taskview"}},
	"/internal/taskview": {"texts for operators send no SQL; of outbox they use reasons", []string{"", "/admin"}},

	"/forward": {"a publisher is a handler; it knows no relay",
		[]string{"", "/handlers", "/internal/codec", "/internal/copied", "/internal/handler"}},
	"/internal/publisher": {"parts of publishers know no broker",
		[]string{"/forward", "/handlers"}},
	"/inbox": {"a consumer needs no handlers",
		[]string{"", "/internal/schemaname", "/internal/txcheck"}},
	"/pgdb": {"a pool knows no task",
		[]string{"/internal/guard", "/internal/pgerr", pq}},

	"/internal/call": {"a call knows no SQL and no task",
		[]string{"", "/handlers", "/internal/guard", "/internal/handler", "/internal/pgerr"}},
	"/internal/decide": {"decisions are pure: of store they use the row and the change, of outbox kinds and reasons",
		[]string{"", "/handlers", "/internal/call", "/internal/handler", "/internal/pgerr", "/internal/store"}},
	"/internal/report": {"logs and observers learn what was decided and recorded",
		[]string{"", "/internal/call", "/internal/decide", "/internal/handler", "/internal/key", "/internal/pgerr", "/internal/store"}},
	"/internal/apptx": {"the one ending of transactions in which an app writes knows no claim and no lease",
		[]string{"/internal/call", "/internal/decide", "/internal/pg", "/internal/pgerr", "/internal/report", "/internal/store"}},
	"/internal/txrun": {"Tx, Batch and groups know no lease",
		[]string{"/internal/apptx", "/internal/call", "/internal/decide", "/internal/handler", "/internal/pg", "/internal/pgerr",
			"/internal/plan", "/internal/progress", "/internal/report", "/internal/store", "/internal/taskrun", ""}},
	"/internal/leaserun": {"leases know no claim of Tx and Batch",
		[]string{"", "/internal/apptx", "/internal/call", "/internal/decide", "/internal/guard", "/internal/handler", "/internal/taskrun", "/internal/pg",
			"/internal/pgerr", "/internal/plan", "/internal/progress", "/internal/report", "/internal/store"}},
	"/internal/progress": {"what handlers tell of their runs is written over pg, whatever their kind",
		[]string{"", "/internal/pg", "/internal/pgerr"}},
	"/internal/store": {"statements know no handler",
		[]string{"", "/internal/codec", "/internal/pg", "/internal/pgerr", "/internal/plan", "/internal/timeline", pq}},
	"/internal/upkeep": {"upkeep changes rows by SQL and knows no handler",
		[]string{"/internal/counts", "/internal/origin", "/internal/pg", "/internal/pgerr", "/internal/tail", pq}},
	"/internal/schedule": {"a schedule enqueues as an app does",
		[]string{"", "/internal/codec", "/internal/guard", "/internal/pg", "/internal/pgerr", "/internal/wake", pq}},
	"/internal/access":     {"rights and objects are read from the schema's scripts", []string{"/internal/pgerr", "/internal/schemaname", "/schema"}},
	"/internal/origin":     {"the database's identity is read over pg", []string{"/internal/pg"}},
	"/internal/pg":         {"connections know no task", []string{"/internal/guard", "/internal/pgerr", pq, goRetry}},
	"/internal/handler":    {"middleware and results know no SQL", []string{"", "/internal/codec", "/internal/guard", "/internal/taskrun", goRetry}},
	"/internal/pgerr":      {"errors of drivers are read without the drivers", []string{"/internal/guard"}},
	"/internal/intx":       {"a transaction is of any client; its errors are read by pgerr", []string{"/internal/pgerr", "/internal/wake"}},
	"/internal/plan":       {"decisions are pure", nil},
	"/internal/await":      {"a leaf", nil},
	"/internal/codec":      {"codecs are guarded, and named by a header", []string{"/internal/copied", "/internal/guard"}},
	"/internal/copied":     {"a leaf", nil},
	"/internal/counts":     {"a leaf", nil},
	"/internal/guard":      {"a leaf", nil},
	"/internal/key":        {"a leaf", nil},
	"/internal/taskrun":    {"a leaf", nil},
	"/internal/schemaname": {"a leaf", nil},
	"/internal/shape":      {"a leaf", nil},
	"/internal/tail":       {"a leaf", nil},
	"/internal/timeline":   {"a leaf", nil},
	"/internal/txcheck":    {"a leaf", nil},
	"/internal/writable":   {"a statement needs its errors alone", []string{"/internal/pgerr"}},
	"/internal/wake":       {"a leaf", nil},
}

func TestImportsPointOneWay(t *testing.T) {
	t.Parallel()
	for _, p := range corePackages(t) {
		d := directions[strings.TrimPrefix(p.ImportPath, module)]
		for _, i := range p.Imports {
			standard := !strings.Contains(strings.Split(i, "/")[0], ".")
			if !standard && !slices.Contains(d.imports, strings.TrimPrefix(i, module)) {
				t.Errorf("%s imports %s, but %s", p.ImportPath, i, d.why)
			}
		}
		for _, i := range d.imports {
			path := i
			if i == "" || i[0] == '/' {
				path = module + i
			}
			if !slices.Contains(p.Imports, path) {
				t.Errorf("%s does not import %s, which its direction lists", p.ImportPath, path)
			}
			if _, known := directions[i]; path != i && !known {
				t.Errorf("%s imports %s, which has no direction", p.ImportPath, path)
			}
		}
	}
}

// The tests of what an app imports are in its module graph, with all that they import.
func TestNoTestImportsTheStartersOfServers(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		starts := slices.ContainsFunc(slices.Concat(p.Imports, p.TestImports, p.XTestImports), func(i string) bool {
			return strings.Contains(i, "dockertest") || strings.Contains(i, "embedded-postgres")
		})
		if starts != (p.ImportPath == module+"/internal/testing/devpg/provide") {
			t.Errorf("%s imports dockertest or embedded-postgres: %t; "+
				"only internal/testing/devpg/provide does, which go run builds", p.ImportPath, starts)
		}
	}
}

func TestSqlxIsImportedByItsAdapterOnly(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		if p.ImportPath != module {
			continue
		}
		for _, file := range p.files {
			name := filepath.Base(fset.Position(file.Package).Filename)
			for _, i := range file.Imports {
				if i.Path.Value == strconv.Quote(sqlxPath) && name != "sqlx_adapter.go" {
					t.Errorf("%s imports sqlx", name)
				}
			}
		}
	}
}

func TestFilesAreShort(t *testing.T) {
	t.Parallel()
	all, root := 0, 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.Contains(path, "testdata") {
			return err
		}
		all++
		if n := strings.Count(read(t, path), "\n"); n > 600 {
			t.Errorf("%s has %d lines, at most 600", path, n)
		}
		if filepath.Dir(path) == "." && !strings.HasSuffix(path, "_test.go") {
			root++
		}
		return nil
	})
	if err != nil || all < 200 || root > 12 {
		t.Errorf("%d files of Go, want all modules'; package outbox has %d, at most 12; error %v", all, root, err)
	}
}

// unnamed are the structs that still embed a part.
var unnamed = []string{
	"/internal/upkeep.Heartbeat.Params", "/internal/upkeep.sharedJobs.Params", "/internal/upkeep.takeover.Params",
	"/internal/plan.Head.Position", "/internal/store.Journal.Store", "/internal/store.note.Runs",
	"/relay.poller.Store", "/relay.portion.lane", "/relay.rate.Store",
}

// A reader finds the home of a method by its receiver, so a part, which has methods, has a name in a
// struct of a relay and its internals.
func TestAPartOfAStructHasAName(t *testing.T) {
	t.Parallel()
	for _, p := range corePackages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		if path != "/relay" && !strings.HasPrefix(path, "/internal/") {
			continue
		}
		scope := p.types.Scope()
		for _, name := range scope.Names() {
			s, ok := scope.Lookup(name).Type().Underlying().(*types.Struct)
			if !ok || scope.Lookup(name).Pkg() != p.types {
				continue
			}
			for f := range s.Fields() {
				of := f.Type()
				if pointer, ok := of.(*types.Pointer); ok {
					of = pointer.Elem()
				}
				named, ok := of.(*types.Named)
				if !f.Embedded() || !ok || named.Obj().Pkg() == nil ||
					!strings.HasPrefix(named.Obj().Pkg().Path(), module) ||
					types.NewMethodSet(types.NewPointer(named)).Len() == 0 {
					continue
				}
				what := path + "." + name + "." + f.Name()
				if !slices.Contains(unnamed, what) {
					t.Errorf("%s: the field has no name", what)
				}
			}
		}
	}
}

var relayType = regexp.MustCompile(`(^|[^.\w])Relay\b`)

// A Relay starts its parts and knows them; no part knows the Relay.
func TestNoPartRefersToRelay(t *testing.T) {
	t.Parallel()
	structs := 0
	for _, p := range packages(t) {
		if p.ImportPath != module+"/relay" {
			continue
		}
		for _, file := range p.files {
			ast.Inspect(file, func(n ast.Node) bool {
				s, ok := n.(*ast.StructType)
				if !ok {
					return true
				}
				structs++
				for _, f := range s.Fields.List {
					if text := types.ExprString(f.Type); relayType.MatchString(text) {
						t.Errorf("%s: a field has the type %s", fset.Position(f.Pos()), text)
					}
				}
				return true
			})
		}
	}
	if structs < 15 {
		t.Errorf("%d structs were found", structs)
	}
}

const module = "github.com/txoutbox/outbox"

// goPackage is a package of this module. Its files, types and info are without its tests.
type goPackage struct {
	ImportPath, Dir, Export                     string
	GoFiles, Imports, TestImports, XTestImports []string

	files []*ast.File
	types *types.Package
	info  *types.Info
}

var fset = token.NewFileSet()

// exported imports what a package of this module imports, as the compiler exports it.
var exported types.Importer

var listed = sync.OnceValues(func() (own []*goPackage, err error) {
	cmd := exec.Command("go", "list", "-export", "-deps",
		"-json=ImportPath,Dir,Export,GoFiles,Imports,TestImports,XTestImports", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	exports := map[string]string{} // files from which the compiler imports packages, those of dependencies too
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &goPackage{}
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		exports[p.ImportPath] = p.Export
		if p.ImportPath == module || strings.HasPrefix(p.ImportPath, module+"/") {
			own = append(own, p)
		}
	}
	exported = importer.ForCompiler(fset, "gc",
		func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, p := range own {
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				return nil, err
			}
			p.files = append(p.files, file)
		}
		p.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{},
			Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
		p.types, err = (&types.Config{Importer: exported}).Check(p.ImportPath, fset, p.files, p.info)
		if err != nil {
			return nil, err
		}
	}
	return own, nil
})

// packages are those of this module.
func packages(t *testing.T) []*goPackage {
	t.Helper()
	own, err := listed()
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// corePackages are those that directions lists: the library itself.
func corePackages(t *testing.T) (core []*goPackage) {
	t.Helper()
	for _, p := range packages(t) {
		if _, ok := directions[strings.TrimPrefix(p.ImportPath, module)]; ok {
			core = append(core, p)
		}
	}
	if len(core) != len(directions) {
		t.Fatalf("%d packages of the core were found, want %d", len(core), len(directions))
	}
	return core
}

// The tests run in the root of the repository, so each path is relative to it.
func TestMain(m *testing.M) {
	if err := os.Chdir("../../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func read(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
