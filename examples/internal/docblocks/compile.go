package docblocks

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Compile type-checks Go blocks with the packages as the module examples has them, and returns what
// is wrong. The number says how many were checked.
func Compile(root string, blocks []Block) (checked int, problems []error, err error) {
	fset := token.NewFileSet()
	packages, problems, err := packagesOf(fset, root, blocks)
	if err != nil {
		return 0, nil, err
	}
	needed := map[string]bool{}
	for _, files := range packages {
		for _, f := range files {
			for _, path := range f.imports {
				needed[path] = true
			}
		}
	}
	if len(packages) == 0 {
		return 0, problems, nil
	}
	lookup, err := exports(filepath.Join(root, "examples"), needed)
	if err != nil {
		return 0, nil, err
	}
	imp := importer.ForCompiler(fset, "gc", lookup)
	said := map[string]bool{} // a block of declarations is in the packages of those after it as well
	for _, files := range packages {
		for _, p := range check(fset, imp, files) {
			if !said[p.Error()] {
				said[p.Error()] = true
				problems = append(problems, p)
			}
		}
	}
	return len(packages), problems, nil
}

// packagesOf are the blocks that Compile checks, each with the files that declare what it may use,
// and what could not be parsed.
func packagesOf(fset *token.FileSet, root string, blocks []Block) (packages [][]*goFile, problems []error, err error) {
	byName, err := knownPackages(root)
	if err != nil {
		return nil, nil, err
	}
	common, err := preludeFile(fset, "all", byName)
	if err != nil {
		return nil, nil, err
	}
	var all []*goFile
	ofPage := map[string]*goFile{}
	for _, b := range Of(blocks, "go") {
		f, err := parse(fset, b, byName)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s:%d: %w", b.Page, b.Line, err))
			continue
		}
		all = append(all, f)
		if _, seen := ofPage[b.Page]; !seen {
			if ofPage[b.Page], err = preludeFile(fset, b.Page, byName); err != nil {
				return nil, nil, err
			}
		}
	}
	for i, f := range all {
		files := []*goFile{f}
		if f.form != wholeFile {
			for _, before := range slices.Backward(all[:i]) {
				if before.block.Page == f.block.Page && before.form == declarations {
					files = append(files, before)
				}
			}
			for _, p := range []*goFile{ofPage[f.block.Page], common} {
				if p != nil {
					files = append(files, p)
				}
			}
		}
		packages = append(packages, files)
	}
	return packages, problems, nil
}

func preludeFile(fset *token.FileSet, page string, byName map[string]string) (*goFile, error) {
	text, err := prelude(page, ".go")
	if err != nil || text == "" {
		return nil, err
	}
	return parse(fset, Block{Page: "the prelude of " + page, Line: 1, Text: text}, byName)
}

// check type-checks the first file, with what the others declare besides.
func check(fset *token.FileSet, imp types.Importer, files []*goFile) (problems []error) {
	taken := map[string]bool{}
	var package_ []*ast.File
	for _, f := range files {
		a := f.without(taken)
		a.Name = ast.NewIdent("p")
		package_ = append(package_, a)
	}
	config := types.Config{Importer: imp, Error: func(err error) {
		var e types.Error
		if errors.As(err, &e) && e.Soft { // unused
			if !strings.HasPrefix(fset.Position(e.Pos).String(), files[0].block.Page+":") || files[0].form == statements ||
				files[0].form == declarations && strings.Contains(e.Msg, "imported and not used") {
				return
			}
		}
		problems = append(problems, err)
	}}
	_, _ = config.Check("p", fset, package_, nil) // its error is the first of those
	return problems
}

// exports builds the packages in the module of dir, and finds what the compiler exported of them.
func exports(dir string, paths map[string]bool) (func(path string) (io.ReadCloser, error), error) {
	args := []string{"list", "-export", "-deps", "-f", "{{if .Export}}{{.ImportPath}}\t{{.Export}}{{end}}", "--"}
	for path := range paths {
		args = append(args, path)
	}
	slices.Sort(args[6:])
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, &stderr)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		files[path] = file
	}
	return func(path string) (io.ReadCloser, error) {
		file, found := files[path]
		if !found {
			return nil, fmt.Errorf("package %s is not there", path)
		}
		return os.Open(file)
	}, nil
}
