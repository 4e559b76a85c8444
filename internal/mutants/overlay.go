package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const importLive = `; import mutantlive "` + module + `/internal/mutants/live"`

// overlay is the sources with all mutants, for go build -overlay.
type overlay struct {
	*code
	dir     string // of the changed sources
	cache   string // of what tests reach
	replace map[string]string
	built   map[string]string // binaries by package
	server  string            // URL of the tests' PostgreSQL
	passing map[test]bool     // whether tests that failed with a mutant pass without
}

// hook is a change by which the code asks for the text of a statement or of an embedded file.
type hook struct{ files, from, to string }

var hooks = []hook{
	{"internal/pg/schema.go", `SQL\(query string\) string \{\n`, "${0}\tquery = mutantlive.Statement(query)\n"},
	{"schema/*.go", `\b(files|Files)\.ReadFile\(`, "mutantlive.FS{FS: $1}.ReadFile("},
}

// newOverlay writes the sources. Mutants that do not compile are removed from the code.
func newOverlay(c *code, cache string) (*overlay, error) {
	dir := filepath.Join(cache, strings.ReplaceAll(strings.Trim(c.root, "/"), "/", "-"))
	o := &overlay{code: c, dir: dir, cache: cache, replace: map[string]string{}, built: map[string]string{},
		passing: map[test]bool{}}
	packages, err := list("./...")
	if err != nil {
		return nil, err
	}
	for _, p := range packages {
		for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			if err := o.writeTests(filepath.Join(p.Dir, name)); err != nil {
				return nil, err
			}
		}
	}
	for _, h := range hooks {
		if err := o.writeHook(h); err != nil {
			return nil, err
		}
	}
	return o, o.compile()
}

// writeHook changes the files that have the text; one at least has it.
func (o *overlay) writeHook(h hook) error {
	paths, err := filepath.Glob(filepath.Join(o.root, h.files))
	if err != nil {
		return err
	}
	from, name, found := regexp.MustCompile(h.from), regexp.MustCompile(`(?m)^package \w+`), false
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, "_test.go") || !from.Match(text) {
			continue
		}
		found = true
		changed := from.ReplaceAllString(string(text), h.to)
		if err := o.write(path, name.ReplaceAllString(changed, "${0}"+importLive)); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("no file of %s has %s", h.files, h.from)
	}
	return nil
}

// writeTests has the tests of a file say when they begin and go on.
func (o *overlay) writeTests(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	edits := []edit{{from: fset.Position(file.Name.End()).Offset, before: importLive}}
	enter := func(at token.Pos, t string) {
		edits = append(edits, edit{from: fset.Position(at).Offset, before: "; mutantlive.Enter(" + t + ".Name()); "})
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			in, isTest := n.Type.Params.List, strings.HasPrefix(n.Name.Name, "Test") && n.Recv == nil
			if isTest && len(in) == 1 && len(in[0].Names) == 1 && in[0].Names[0].Name == "t" {
				enter(n.Body.Lbrace+1, "t")
			}
		case *ast.ExprStmt:
			if c, ok := n.X.(*ast.CallExpr); ok && called(c) == "Parallel" && len(c.Args) == 0 {
				if t, ok := c.Fun.(*ast.SelectorExpr).X.(*ast.Ident); ok {
					enter(n.End(), t.Name)
				}
			}
		}
		return true
	})
	if len(edits) == 1 {
		return nil
	}
	for i := range edits {
		edits[i].to = edits[i].from
	}
	changed, _ := apply(text, edits)
	return o.write(path, changed)
}

// write replaces a file.
func (o *overlay) write(path, text string) error {
	place, err := filepath.Rel(o.root, path)
	if err != nil {
		return err
	}
	to := filepath.Join(o.dir, place)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if before, err := os.ReadFile(to); err != nil || string(before) != text {
		if err := os.WriteFile(to, []byte(text), 0o644); err != nil {
			return err
		}
	}
	o.replace[path] = to
	return nil
}

var compileError = regexp.MustCompile(`(?m)^(\S+\.go):(\d+):\d+: (.*)`)

// compile builds the packages with their mutants, until all of these compile.
func (o *overlay) compile() error {
	for range 20 {
		lines := map[string]map[int][]*mutant{}
		var packages []string
		for _, f := range o.goFiles {
			path := filepath.Join(o.root, f.path)
			if len(f.edits) == 0 {
				delete(o.replace, path)
				continue
			}
			name := edit{from: f.nameEnd, to: f.nameEnd, before: importLive}
			changed, at := apply(f.text, append(slices.Clone(f.edits), name))
			lines[f.path] = at
			if err := o.write(path, changed); err != nil {
				return err
			}
			packages = append(packages, f.ImportPath)
		}
		slices.Sort(packages)
		out, err := o.goCommand("build", append([]string{"-gcflags=-e"}, slices.Compact(packages)...)...)
		if err == nil {
			return nil
		}
		removed := 0
		for _, m := range compileError.FindAllStringSubmatch(out, -1) {
			place := strings.TrimPrefix(strings.TrimPrefix(m[1], o.dir+"/"), o.root+"/")
			line, _ := strconv.Atoi(m[2])
			for _, bad := range lines[place][line] {
				if bad == nil || !slices.Contains(o.mutants, bad) {
					continue
				}
				fmt.Fprintf(os.Stderr, "left out, as it does not compile: %s (%s)\n", bad.id(), m[3])
				o.remove(bad)
				removed++
			}
		}
		if removed == 0 {
			return fmt.Errorf("build: %w\n%s", err, out)
		}
	}
	return fmt.Errorf("the mutants do not compile")
}

func (o *overlay) remove(m *mutant) {
	o.mutants = slices.DeleteFunc(o.mutants, func(n *mutant) bool { return n == m })
	for _, f := range o.goFiles {
		f.edits = slices.DeleteFunc(f.edits, func(e edit) bool { return e.mutant == m })
	}
}

// goCommand runs the go command with the overlay.
func (o *overlay) goCommand(command string, args ...string) (string, error) {
	text, err := json.Marshal(map[string]any{"Replace": o.replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(o.dir, "overlay.json")
	if err := os.WriteFile(name, text, 0o644); err != nil {
		return "", err
	}
	cmd := exec.Command("go", append([]string{command, "-overlay", name}, args...)...)
	cmd.Dir = o.root
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// binary is the tests of a package, with all mutants.
func (o *overlay) binary(place string) (string, error) {
	if o.built[place] == "" {
		name := filepath.Join(o.dir, strings.ReplaceAll(place, "/", "_")+".test")
		if out, err := o.goCommand("test", "-c", "-vet=off", "-o", name, "./"+place); err != nil {
			return "", fmt.Errorf("build of the tests of %s: %w\n%s", place, err, out)
		}
		o.built[place] = name
	}
	return o.built[place], nil
}
