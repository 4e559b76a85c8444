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
	"strings"
)

const module = "github.com/txoutbox/outbox"

// source is a package of the module.
type source struct {
	ImportPath, Dir, Export                  string
	GoFiles, TestGoFiles, XTestGoFiles, Deps []string
	EmbedFiles                               []string

	fset  *token.FileSet
	files []*ast.File
	types *types.Package
	info  *types.Info
}

// mutant is one change of the code.
type mutant struct {
	file, function, kind, text string
	number                     int       // of Go code
	statement                  [2]string // of a statement: the text and its mutant
	name                       string    // of that statement
	sqlFile, sql               string    // of the schema: a file and its text
}

// id identifies a mutant for as long as its function and its text stay.
func (m *mutant) id() string { return m.file + " | " + m.function + " | " + m.kind + ": " + m.text }

// functionOf is the key of a mutant's function.
func functionOf(id string) string {
	parts := strings.SplitN(id, " | ", 3)
	return strings.Join(parts[:min(2, len(parts))], " | ")
}

const longestText = 160

// code is all mutants and the sources that have those of Go code.
type code struct {
	root    string
	mutants []*mutant
	goFiles []*goFile
	schema  map[string]string // the embedded files
	bodies  []sqlBody
	seen    map[string]int
}

func (c *code) newMutant(file, function, kind, text string) *mutant {
	text = strings.Join(strings.Fields(strings.ReplaceAll(text, "|", "¦")), " ")
	if r := []rune(text); len(r) > longestText {
		text = string(r[:longestText-60]) + " … " + string(r[len(r)-57:])
	}
	m := &mutant{file: file, function: function, kind: kind, text: text, number: len(c.mutants) + 1}
	c.seen[m.id()]++
	if n := c.seen[m.id()]; n > 1 {
		m.text += fmt.Sprintf(" #%d", n)
	}
	c.mutants = append(c.mutants, m)
	return m
}

// test is a test of a package.
type test struct{ Package, Name string }

func (t test) String() string { return t.Package + "." + t.Name }

// list is go list of packages.
func list(args ...string) (out []*source, err error) {
	const fields = "-json=ImportPath,Dir,Export,GoFiles,TestGoFiles,XTestGoFiles,Deps,EmbedFiles"
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
	c := &code{root: root, schema: map[string]string{}, seen: map[string]int{}}
	exports := map[string]string{}
	for _, p := range all {
		exports[p.ImportPath] = p.Export
	}
	for _, p := range all {
		place, own := strings.CutPrefix(p.ImportPath, module+"/")
		if !own {
			continue
		}
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
	texts := map[string][]byte{}
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
		texts[path] = text
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
		c.goFiles = append(c.goFiles, f)
		c.loadStatements(p, file, place)
	}
	return nil
}

// loadStatements adds the mutants of the constants that are statements: they begin with a name.
func (c *code) loadStatements(p *source, file *ast.File, place string) {
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, spec := range g.Specs {
			for _, id := range spec.(*ast.ValueSpec).Names {
				value := p.info.Defs[id].(*types.Const).Val()
				if value.Kind() != constant.String || !strings.HasPrefix(constant.StringVal(value), "/* outbox: ") {
					continue
				}
				text := constant.StringVal(value)
				name, _, _ := strings.Cut(strings.TrimPrefix(text, "/* "), " */")
				for _, s := range mutateSQL(text) {
					m := c.newMutant(place, id.Name, s.kind, s.text)
					m.name, m.statement = name, [2]string{text, text[:s.from] + s.mutated + text[s.to:]}
				}
			}
		}
	}
}

// loadSchema adds the mutants of the functions and views.
func (c *code) loadSchema(p *source) error {
	slices.Sort(p.EmbedFiles)
	for _, name := range p.EmbedFiles {
		text, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			return err
		}
		c.schema[name] = string(text)
	}
	c.bodies = bodies(p.EmbedFiles, c.schema)
	for _, b := range c.bodies {
		text := c.schema[b.file]
		for _, s := range mutateSQL(text[b.from:b.to]) {
			m := c.newMutant("schema", b.name, s.kind, s.text)
			m.sqlFile, m.sql = b.file, text[:b.from+s.from]+s.mutated+text[b.from+s.to:]
		}
	}
	return nil
}
