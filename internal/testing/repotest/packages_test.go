package repotest

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/txoutbox/outbox"

// goPackage is a package of this module, without its tests.
type goPackage struct {
	ImportPath, Dir, Export string
	GoFiles, Imports        []string

	files []*ast.File
	types *types.Package
	info  *types.Info
}

var fset = token.NewFileSet()

// exports are the files from which the compiler imports packages, those of dependencies too.
var exports = map[string]string{}

// typeCheck fills in files, types and info.
func (p *goPackage) typeCheck(files ...*ast.File) (err error) {
	imports := importer.ForCompiler(fset, "gc",
		func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	p.files = files
	p.info = &types.Info{
		Uses: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{},
		Selections: map[*ast.SelectorExpr]*types.Selection{},
	}
	p.types, err = (&types.Config{Importer: imports}).Check(p.ImportPath, fset, files, p.info)
	return err
}

var listed = sync.OnceValues(func() (own []*goPackage, err error) {
	cmd := osexec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Imports", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
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
	for _, p := range own {
		var files []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				return nil, err
			}
			files = append(files, file)
		}
		if err := p.typeCheck(files...); err != nil {
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
