package outbox_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A file refers to another one if it uses a name, method or field that is declared there.
func TestNoCircleHasMoreThanThreeFiles(t *testing.T) {
	t.Parallel()
	cmd := osexec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	type listed struct {
		ImportPath, Dir, Export string
		GoFiles                 []string
	}
	exports, own := map[string]string{}, []listed{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if p.ImportPath == module || strings.HasPrefix(p.ImportPath, module+"/") {
			own = append(own, p)
		}
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, p := range own {
		uses, err := references(fset, imports, p.ImportPath, p.Dir, p.GoFiles)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range circles(uses) {
			if len(c) > 3 {
				t.Errorf("%s: a circle of %d files: %s", p.ImportPath, len(c), strings.Join(c, " "))
			}
		}
	}
	want := [][]string{{"a", "b", "c"}, {"d", "e"}}
	got := circles(map[string]map[string]bool{
		"a": {"b": true}, "b": {"c": true}, "c": {"a": true, "d": true}, "d": {"e": true}, "e": {"d": true}, "f": {"a": true}})
	slices.SortFunc(got, slices.Compare)
	if !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("circles found %v, want %v", got, want)
	}
}

// references returns the files that each file of a package refers to.
func references(fset *token.FileSet, imports types.Importer, path, dir string, names []string) (map[string]map[string]bool, error) {
	uses := map[string]map[string]bool{}
	var files []*ast.File
	for _, name := range names {
		file, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, 0)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
		uses[name] = map[string]bool{}
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	pkg, err := (&types.Config{Importer: imports}).Check(path, fset, files, info)
	if err != nil {
		return nil, err
	}
	for id, object := range info.Uses {
		_, isFunc := object.(*types.Func)
		field, isVar := object.(*types.Var)
		global := object.Pkg() == pkg && (object.Parent() == pkg.Scope() || isFunc || isVar && field.IsField())
		from, to := filepath.Base(fset.Position(id.Pos()).Filename), filepath.Base(fset.Position(object.Pos()).Filename)
		if global && from != to {
			uses[from][to] = true
		}
	}
	return uses, nil
}

// circles are the groups of files each of which reaches all others of its group.
func circles(uses map[string]map[string]bool) (groups [][]string) {
	reach := map[string]map[string]bool{}
	for file := range uses {
		reached, next := map[string]bool{}, []string{file}
		for len(next) > 0 {
			at := next[0]
			next = next[1:]
			for other := range uses[at] {
				if !reached[other] {
					reached[other] = true
					next = append(next, other)
				}
			}
		}
		reach[file] = reached
	}
	for _, file := range slices.Sorted(maps.Keys(uses)) {
		group := []string{}
		for _, other := range slices.Sorted(maps.Keys(reach[file])) {
			if reach[other][file] {
				group = append(group, other)
			}
		}
		if len(group) > 1 && group[0] == file {
			groups = append(groups, group)
		}
	}
	return groups
}
