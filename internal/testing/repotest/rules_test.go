package repotest

import (
	"go/types"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goFiles are the Go files of all modules.
func goFiles(t *testing.T) (all []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == ".go" && !strings.Contains(path, "testdata") {
			all = append(all, filepath.ToSlash(path))
		}
		return err
	})
	if err != nil || len(all) < 500 {
		t.Fatalf("%d files of Go: %v", len(all), err)
	}
	return all
}

func TestFilesAreShort(t *testing.T) {
	t.Parallel()
	root := 0
	for _, name := range goFiles(t) {
		if n := strings.Count(read(t, name), "\n"); n > 600 {
			t.Errorf("%s has %d lines, at most 600", name, n)
		}
		if !strings.Contains(name, "/") && !strings.HasSuffix(name, "_test.go") {
			root++
		}
	}
	if root > 12 {
		t.Errorf("package outbox has %d files, at most 12", root)
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
