// Circles prints which files of a package refer to each other in circles:
//
//	go run .ci/circles.go ./relay ./internal/upkeep
//
// A file refers to another one if it uses a name, method or field that is declared there. Tests do not count.
package main

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	for _, dir := range os.Args[1:] {
		uses, err := read(dir)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		references := 0
		for _, of := range uses {
			references += len(of)
		}
		fmt.Printf("%s: %d files, %d references\n", dir, len(uses), references)
		for _, c := range circles(uses) {
			fmt.Printf("  a circle of %d: %s\n", len(c), strings.Join(c, " "))
		}
	}
}

// read returns the files that each file of the package refers to.
func read(dir string) (map[string]map[string]bool, error) {
	fset := token.NewFileSet()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	uses := map[string]map[string]bool{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
		uses[filepath.Base(name)] = map[string]bool{}
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(fset, "source", nil), Error: func(error) {}} // of files for other systems
	pkg, _ := config.Check(dir, fset, files, info)
	for id, object := range info.Uses {
		if object.Pkg() != pkg || !object.Pos().IsValid() {
			continue
		}
		field, isVar := object.(*types.Var)
		_, isFunc := object.(*types.Func)
		if object.Parent() != pkg.Scope() && !isFunc && !(isVar && field.IsField()) {
			continue // local
		}
		from, to := filepath.Base(fset.Position(id.Pos()).Filename), filepath.Base(fset.Position(object.Pos()).Filename)
		if from != to {
			uses[from][to] = true
		}
	}
	return uses, nil
}

// circles are the strongly connected components of more than one file, by Tarjan's algorithm.
func circles(uses map[string]map[string]bool) (out [][]string) {
	index, low, onStack := map[string]int{}, map[string]int{}, map[string]bool{}
	var stack []string
	var visit func(string)
	visit = func(file string) {
		index[file] = len(index) + 1
		low[file] = index[file]
		stack, onStack[file] = append(stack, file), true
		for _, other := range slices.Sorted(maps.Keys(uses[file])) {
			switch {
			case index[other] == 0:
				visit(other)
				low[file] = min(low[file], low[other])
			case onStack[other]:
				low[file] = min(low[file], index[other])
			}
		}
		if low[file] != index[file] {
			return
		}
		at := slices.Index(stack, file)
		circle := slices.Sorted(slices.Values(stack[at:]))
		stack = stack[:at]
		for _, member := range circle {
			onStack[member] = false
		}
		if len(circle) > 1 {
			out = append(out, circle)
		}
	}
	for _, file := range slices.Sorted(maps.Keys(uses)) {
		if index[file] == 0 {
			visit(file)
		}
	}
	return out
}
