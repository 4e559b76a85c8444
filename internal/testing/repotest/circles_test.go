package repotest

import (
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A file refers to another one if it uses a name, method or field that is declared there.
func TestNoCircleHasMoreThanTwoFiles(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		for _, c := range circles(p.references()) {
			if len(c) > 2 {
				t.Errorf("%s: a circle of %d files: %s", p.ImportPath, len(c), strings.Join(c, " "))
			}
		}
	}
}

// references are the files that each file of a package refers to.
func (p *goPackage) references() map[string]map[string]bool {
	uses := map[string]map[string]bool{}
	for _, name := range p.GoFiles {
		uses[name] = map[string]bool{}
	}
	for id, object := range p.info.Uses {
		_, isFunc := object.(*types.Func)
		field, isVar := object.(*types.Var)
		global := object.Pkg() == p.types && (object.Parent() == p.types.Scope() || isFunc || isVar && field.IsField())
		from, to := filepath.Base(fset.Position(id.Pos()).Filename), filepath.Base(fset.Position(object.Pos()).Filename)
		if global && from != to {
			uses[from][to] = true
		}
	}
	return uses
}

// circles are the groups of files each of which reaches all others of its group. It makes uses what
// each file reaches.
func circles(uses map[string]map[string]bool) (groups [][]string) {
	for through, reached := range uses {
		for _, all := range uses {
			if all[through] {
				maps.Copy(all, reached)
			}
		}
	}
	files := slices.Sorted(maps.Keys(uses))
	for _, file := range files {
		group := []string{}
		for _, other := range files {
			if uses[file][other] && uses[other][file] {
				group = append(group, other)
			}
		}
		if len(group) > 1 && group[0] == file {
			groups = append(groups, group)
		}
	}
	return groups
}
