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
	ImportPath, Dir, Export string
	GoFiles, EmbedFiles     []string

	fset  *token.FileSet
	files []*ast.File
	types *types.Package
	info  *types.Info
}

// mutant is one change of the code.
type mutant struct {
	file, function, kind, text string
	line                       int
	number                     int    // of a mutant of Go: all of them are in one build
	changed                    string // of a mutant of SQL: its file's text
}

func (m *mutant) String() string {
	return fmt.Sprintf("%s:%d | %s | %s: %s", m.file, m.line, m.function, m.kind, m.text)
}

const longestText = 160

// code is one package with its mutants.
type code struct {
	root     string
	mutants  []*mutant
	numbered int
	replaced map[string]string // texts of the files with all mutants of Go, by path from the root
}

func (c *code) add(m *mutant) {
	m.text = strings.Join(strings.Fields(m.text), " ")
	if r := []rune(m.text); len(r) > longestText {
		m.text = string(r[:longestText-60]) + " … " + string(r[len(r)-57:])
	}
	c.mutants = append(c.mutants, m)
}

// load finds the mutants of a package: those of Go, or those of its SQL.
func load(root, place string, sql bool) (*code, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,EmbedFiles", "./"+place)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", place, err)
	}
	var p *source // at last the package itself, behind what it needs
	exports := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		next := &source{}
		if err := d.Decode(next); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		p = next
		exports[p.ImportPath] = p.Export
	}
	c := &code{root: root, replaced: map[string]string{}}
	if sql && len(p.EmbedFiles) > 0 {
		if err := c.loadSchema(p); err != nil {
			return nil, err
		}
	}
	return c, c.loadPackage(p, exports, sql)
}

func (c *code) loadPackage(p *source, exports map[string]string, sql bool) error {
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
		if sql {
			f.findStatements(file)
			continue
		}
		f.find(file)
		c.replaced[place] = f.changed()
	}
	if !sql {
		place, err := filepath.Rel(c.root, filepath.Join(p.Dir, "mutants_chooser.go"))
		if err != nil {
			return err
		}
		c.replaced[place] = fmt.Sprintf(chooser, p.types.Name())
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
		f.code.add(&mutant{file: f.path, function: f.function, kind: s.kind, text: s.text,
			line: f.fset.Position(value.Pos()).Line,
			changed: f.text[:f.at(value.Pos())] + strconv.Quote(text[:s.from]+s.mutated+text[s.to:]) +
				f.text[f.at(value.End()):]})
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
			c.add(&mutant{file: filepath.Join("schema", b.file), function: b.name, kind: s.kind, text: s.text,
				line:    1 + strings.Count(text[:b.from+s.from], "\n"),
				changed: text[:b.from+s.from] + s.mutated + text[b.from+s.to:]})
		}
	}
	return nil
}
