package main

import (
	"bytes"
	"cmp"
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

// goFile puts all mutants of one file into its text. Each is chosen at run time by its number.
type goFile struct {
	*source
	code     *code
	path     string // from the root
	text     string
	function string
	edits    []edit
}

// edit puts text at an offset, in place of some bytes. Edits at one offset are nested: the range that ends
// them says in which order.
type edit struct {
	at, replaced int
	text         string
	ends         bool // the range begins before it; else it ends behind it
	other        int  // the range's other end
}

func (f *goFile) raw(n ast.Node) string { return f.text[f.at(n.Pos()):f.at(n.End())] }
func (f *goFile) at(p token.Pos) int    { return f.fset.Position(p).Offset }

// add numbers a mutant.
func (f *goFile) add(kind, text string, at token.Pos) int {
	f.code.numbered++
	f.code.add(&mutant{file: f.path, function: f.function, kind: kind, text: text,
		line: f.fset.Position(at).Line, number: f.code.numbered})
	return f.code.numbered
}

// wrap puts texts around a node. What is wrapped first is outside.
func (f *goFile) wrap(n ast.Node, before, after string) {
	from, to := f.at(n.Pos()), f.at(n.End())
	f.edits = append(f.edits, edit{at: from, text: before, other: to}, edit{at: to, text: after, ends: true, other: from})
}

// changed is the file's text with its mutants.
func (f *goFile) changed() string {
	order := make([]int, len(f.edits))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		a, b := f.edits[i], f.edits[j]
		switch {
		case a.at != b.at:
			return cmp.Compare(a.at, b.at)
		case a.ends != b.ends: // what ends here comes first
			if a.ends {
				return -1
			}
			return 1
		case a.other != b.other: // the longest begins first, and ends last
			return cmp.Compare(b.other, a.other)
		case a.ends:
			return cmp.Compare(j, i)
		default:
			return cmp.Compare(i, j)
		}
	})
	var b strings.Builder
	done := 0
	for _, i := range order {
		e := f.edits[i]
		b.WriteString(f.text[done:e.at] + e.text)
		done = e.at + e.replaced
	}
	return b.String() + f.text[done:]
}

// find puts in the mutants of all functions of the file.
func (f *goFile) find(file *ast.File) {
	for _, d := range file.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		f.function = fn.Name.Name
		if fn.Recv != nil {
			f.function = strings.Trim(types.ExprString(fn.Recv.List[0].Type), "*") + "." + f.function
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.IfStmt:
				f.condition(n.Cond)
				if n.Else == nil {
					f.last(n.Body.List)
				}
			case *ast.SwitchStmt:
				if n.Tag == nil {
					for _, c := range n.Body.List {
						for _, e := range c.(*ast.CaseClause).List {
							f.condition(e)
						}
					}
				}
			case *ast.ReturnStmt:
				for _, e := range n.Results {
					if b, ok := e.(*ast.BinaryExpr); ok && b.Op.Precedence() == token.EQL.Precedence() {
						f.condition(e)
					}
				}
			case *ast.BinaryExpr:
				f.binary(n)
			case *ast.BlockStmt:
				f.statements(n.List)
			case *ast.CaseClause:
				f.statements(n.Body)
			case *ast.CommClause:
				f.statements(n.Body)
			}
			return true
		})
	}
}

// condition negates a condition, except that an error has occurred: what follows is dropped then.
func (f *goFile) condition(e ast.Expr) {
	known := f.info.Types[e]
	if text := f.raw(e); f.isBool(e) && known.Value == nil && text != "err != nil" && text != "err == nil" {
		n := f.add("negate", text, e.Pos())
		f.wrap(e, fmt.Sprintf("(mutated_(%d) != (", n), "))")
	}
}

// isBool reports whether the type of an expression is bool itself.
func (f *goFile) isBool(e ast.Expr) bool {
	t := f.info.Types[e].Type
	return t == types.Typ[types.Bool] || t == types.Typ[types.UntypedBool]
}

// binary drops operands of && and ||, and changes bounds and the order of operands.
func (f *goFile) binary(b *ast.BinaryExpr) {
	if f.info.Types[b].Value != nil {
		return // a constant
	}
	x, y, op := f.raw(b.X), f.raw(b.Y), " "+b.Op.String()+" "
	switch b.Op {
	case token.LAND, token.LOR:
		if !f.isBool(b.X) || !f.isBool(b.Y) {
			return
		}
		without := "(mutated_(%d) || ("
		if b.Op == token.LOR {
			without = "(!mutated_(%d) && ("
		}
		f.wrap(b.X, fmt.Sprintf(without, f.add("drop operand", "["+x+op+"] "+y, b.Pos())), "))")
		f.wrap(b.Y, fmt.Sprintf(without, f.add("drop operand", x+" ["+op+y+"]", b.Pos())), "))")
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		n := f.add("bound", x+op+y, b.Pos())
		f.add("operands", y+op+x, b.Pos()) // n + 1
		f.wrap(b, fmt.Sprintf("compared_(%d, %q, ", n, b.Op.String()), ")")
		at := f.at(b.OpPos)
		f.edits = append(f.edits, edit{at: at, replaced: len(b.Op.String()), text: ",", other: at + 1})
	}
}

// drop drops a statement.
func (f *goFile) drop(s ast.Stmt) {
	f.wrap(s, fmt.Sprintf("if !mutated_(%d) { ", f.add("drop", f.raw(s), s.Pos())), " }")
}

// last drops the return, break or continue that ends the body of an if without else.
func (f *goFile) last(list []ast.Stmt) {
	if len(list) == 0 {
		return
	}
	end := list[len(list)-1]
	switch end.(type) {
	case *ast.ReturnStmt, *ast.BranchStmt:
		f.drop(end)
	}
}

func (f *goFile) statements(list []ast.Stmt) {
	for _, s := range list {
		if f.simple(s) {
			f.drop(s)
		}
	}
}

// unchanged are calls whose loss only shows in a log or ends in a deadlock.
var unchanged = []string{"Lock", "Unlock", "RLock", "RUnlock", "Done", "panic",
	"Debug", "Info", "Warn", "Error", "Log", "LogAttrs"}

// simple reports whether a statement can be dropped.
func (f *goFile) simple(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.ExprStmt:
		c, ok := s.X.(*ast.CallExpr)
		return ok && !slices.Contains(unchanged, called(c))
	case *ast.DeferStmt:
		return !slices.Contains(unchanged, called(s.Call)) && called(s.Call) != "Stop" // of a timer
	case *ast.AssignStmt:
		return s.Tok != token.DEFINE && f.raw(s.Lhs[0]) != "_"
	case *ast.IncDecStmt, *ast.SendStmt, *ast.GoStmt:
		return true
	}
	return false
}

func called(c *ast.CallExpr) string {
	switch fn := c.Fun.(type) {
	case *ast.Ident:
		return fn.Name
	case *ast.SelectorExpr:
		return fn.Sel.Name
	}
	return ""
}

// chooser is the file that a package with mutants gets. OUTBOX_MUTANT is the number of the one that is on;
// with OUTBOX_MUTANTS_REACHED, the numbers of those that are reached are written to that file.
const chooser = `package %s

import (
	"cmp"
	"os"
	"strconv"
	"sync"
)

var (
	mutant_, _ = strconv.Atoi(os.Getenv("OUTBOX_MUTANT"))
	reached_   = os.Getenv("OUTBOX_MUTANTS_REACHED")
	known_     sync.Map
)

func mutated_(n int) bool {
	if reached_ != "" {
		if _, known := known_.LoadOrStore(n, true); !known {
			f, err := os.OpenFile(reached_, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				panic(err)
			}
			_, _ = f.WriteString(strconv.Itoa(n) + "\n")
			_ = f.Close()
		}
	}
	return n == mutant_
}

// compared_ has two mutants: another bound, and the operands swapped.
func compared_[T cmp.Ordered](n int, op string, a, b T) bool {
	bound, swapped := mutated_(n), mutated_(n+1)
	if swapped {
		a, b = b, a
	}
	switch op {
	case "<":
		return a < b || bound && a == b
	case "<=":
		return a < b || !bound && a == b
	case ">":
		return a > b || bound && a == b
	default:
		return a > b || !bound && a == b
	}
}
`
