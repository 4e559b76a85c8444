package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/txoutbox/outbox"

// source is a package of the module.
type source struct {
	ImportPath, Dir, Export   string
	GoFiles, EmbedFiles, Deps []string
	TestImports, XTestImports []string

	fset  *token.FileSet
	files []*ast.File
	types *types.Package
	info  *types.Info
}

// mutant is one change of the code.
type mutant struct {
	file, function, kind, text string
	path, changed              string // a file from the root, and its text with the mutant
}

// id identifies a mutant for as long as its function and its text stay.
func (m *mutant) id() string { return m.file + " | " + m.function + " | " + m.kind + ": " + m.text }

// functionOf is the key of a mutant's function.
func functionOf(id string) string {
	parts := strings.SplitN(id, " | ", 3)
	return strings.Join(parts[:min(2, len(parts))], " | ")
}

const longestText = 160

// code is the module's packages and all mutants.
type code struct {
	root     string
	packages []*source
	mutants  []*mutant
	seen     map[string]int // mutants by id
}

func (c *code) add(m *mutant) {
	m.text = strings.Join(strings.Fields(strings.ReplaceAll(m.text, "|", "¦")), " ")
	if r := []rune(m.text); len(r) > longestText {
		m.text = string(r[:longestText-60]) + " … " + string(r[len(r)-57:])
	}
	c.seen[m.id()]++
	if n := c.seen[m.id()]; n > 1 {
		m.text += fmt.Sprintf(" #%d", n)
		c.seen[m.id()]++
	}
	c.mutants = append(c.mutants, m)
}

// list is go list of packages.
func list(args ...string) (out []*source, err error) {
	const fields = "-json=ImportPath,Dir,Export,GoFiles,EmbedFiles,Deps,TestImports,XTestImports"
	cmd := exec.Command("go", append([]string{"list", fields}, args...)...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		p := &source{}
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
}

// load finds the mutants of the packages whose path matches one of the patterns.
func load(root string, patterns []string) (*code, error) {
	all, err := list("-export", "-deps", "./...")
	if err != nil {
		return nil, err
	}
	c := &code{root: root, seen: map[string]int{}}
	exports := map[string]string{}
	for _, p := range all {
		exports[p.ImportPath] = p.Export
	}
	for _, p := range all {
		place, own := strings.CutPrefix(p.ImportPath+"/", module+"/")
		if !own {
			continue
		}
		place = strings.TrimSuffix(place, "/")
		c.packages = append(c.packages, p)
		if place == "schema" {
			if err := c.loadSchema(p); err != nil {
				return nil, err
			}
		}
		if slices.ContainsFunc(patterns, func(pattern string) bool { ok, _ := filepath.Match(pattern, place); return ok }) {
			if err := c.loadPackage(p, exports); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

func (c *code) loadPackage(p *source, exports map[string]string) error {
	p.fset = token.NewFileSet()
	texts := map[string]string{}
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(p.fset, path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		texts[path] = string(text)
		p.files = append(p.files, file)
	}
	imports := importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	p.info = &types.Info{
		Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
		Types: map[ast.Expr]types.TypeAndValue{},
	}
	var err error
	if p.types, err = (&types.Config{Importer: imports}).Check(p.ImportPath, p.fset, p.files, p.info); err != nil {
		return err
	}
	for _, file := range p.files {
		path := p.fset.Position(file.Package).Filename
		place, err := filepath.Rel(c.root, path)
		if err != nil {
			return err
		}
		f := &goFile{source: p, code: c, path: place, text: texts[path]}
		f.find(file)
		f.findStatements(file)
	}
	return nil
}

// findStatements adds the mutants of the constants that are statements: they begin with a name.
func (f *goFile) findStatements(file *ast.File) {
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, spec := range g.Specs {
			spec := spec.(*ast.ValueSpec)
			for i, value := range spec.Values {
				known := f.info.Types[value].Value
				if known == nil || known.Kind() != constant.String {
					continue
				}
				if text := constant.StringVal(known); strings.HasPrefix(text, "/* outbox: ") {
					f.function = spec.Names[i].Name
					f.statement(value, text)
				}
			}
		}
	}
}

// statement adds the mutants of a constant, whose expression becomes one literal.
func (f *goFile) statement(value ast.Expr, text string) {
	for _, s := range mutateSQL(text) {
		f.add(s.kind, s.text, value, value, strconv.Quote(text[:s.from]+s.mutated+text[s.to:]))
	}
}

// loadSchema adds the mutants of the functions and views.
func (c *code) loadSchema(p *source) error {
	slices.Sort(p.EmbedFiles)
	texts := map[string]string{}
	for _, name := range p.EmbedFiles {
		text, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			return err
		}
		texts[name] = string(text)
	}
	for _, b := range bodies(p.EmbedFiles, texts) {
		text := texts[b.file]
		for _, s := range mutateSQL(text[b.from:b.to]) {
			c.add(&mutant{file: "schema", function: b.name, kind: s.kind, text: s.text,
				path:    filepath.Join("schema", b.file),
				changed: text[:b.from+s.from] + s.mutated + text[b.from+s.to:]})
		}
	}
	return nil
}
