package repotest

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"unicode"
)

// The records of the code are found by walking each way through the functions that write some: a text,
// a level or attributes may be built from variables, and differ from way to way.

// record is a log record that the code can write.
type record struct {
	text   string
	levels []string // from the most severe on
	always []string // attributes of each such record
	some   []string // attributes of some of them
}

// written is a record of one way through the code.
type written struct {
	text, level string
	keys        []string
}

// value is what a walk knows of an expression. The zero value is nothing.
type value struct {
	known known
	text  string  // of a text, level or method: of the latter two the level
	items []value // of a list, and of an attribute its keys
}

type known int

const (
	nothing known = iota
	aText
	aLevel
	aMethod // of a *slog.Logger, which writes a record
	aList   // arguments of a record
	anAttr  // slog.Attr
)

func (v value) String() string { return fmt.Sprint(int(v.known), v.text, v.items) }

// state is what is known at a place of a way.
type state struct {
	vars  map[types.Object]value
	rows  map[types.Object]int // the row of a table that a variable is the index of
	conds map[string]bool      // conditions that are asked again
}

func (s *state) with(o types.Object, v value) *state {
	if o == nil {
		return s
	}
	c := &state{maps.Clone(s.vars), maps.Clone(s.rows), maps.Clone(s.conds)}
	delete(c.rows, o)
	if v.known == nothing {
		delete(c.vars, o)
	} else {
		c.vars[o] = v
	}
	for cond := range c.conds {
		if slices.Contains(strings.FieldsFunc(cond, inNoName), o.Name()) {
			delete(c.conds, cond)
		}
	}
	return c
}

func inNoName(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }

func (s *state) key() string {
	var parts []string
	for o, v := range s.vars {
		parts = append(parts, fmt.Sprint(o.Pos(), v))
	}
	for o, row := range s.rows {
		parts = append(parts, fmt.Sprint(o.Pos(), "row", row))
	}
	for cond, is := range s.conds {
		parts = append(parts, fmt.Sprint(cond, is))
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n")
}

// distinct leaves out states in which the same is known.
func distinct(states []*state) (out []*state) {
	seen := map[string]bool{}
	for _, s := range states {
		if k := s.key(); !seen[k] {
			seen[k] = true
			out = append(out, s)
		}
	}
	return out
}

// funcOf is a function with its package.
type funcOf struct {
	decl *ast.FuncDecl
	in   *goPackage
}

// walk finds the records of packages.
type walk struct {
	funcs    map[string]funcOf // by their full names
	wrappers map[string]bool   // functions that get the text of a record as an argument
	found    []written
	met      map[token.Pos]bool // uses of slog's methods
	faults   []string

	in       *goPackage
	name     string          // of the function that is walked
	asked    map[string]int  // how often it has a condition
	returned *[]value        // by the function that is read; nil: by none
	reading  map[string]bool // functions, against recursion
	params   []types.Object  // of the function that is walked
	inText   bool            // the text of a record is evaluated, which may come from functions
}

// records are those that the packages can write, by their texts, and what prevents that all are known.
func records(packages []*goPackage) (map[string]*record, []string) {
	w := &walk{funcs: map[string]funcOf{}, wrappers: map[string]bool{}, met: map[token.Pos]bool{},
		reading: map[string]bool{}}
	for _, p := range packages {
		for _, file := range p.files {
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
					if o, ok := p.info.Defs[f.Name].(*types.Func); ok {
						w.funcs[o.FullName()] = funcOf{f, p}
					}
				}
			}
		}
	}
	before := -1
	for len(w.wrappers) > before { // a wrapper may call another
		before = len(w.wrappers)
		w.found, w.faults = nil, nil
		for _, name := range slices.Sorted(maps.Keys(w.funcs)) {
			if f := w.funcs[name]; w.logs(f) {
				w.function(name, f)
			}
		}
	}
	for _, p := range packages {
		w.notMet(p)
	}
	return together(w.found), w.faults
}

// notMet finds what may write records, or add attributes to them, and was not met on a way.
func (w *walk) notMet(p *goPackage) {
	for _, file := range p.files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				name := p.slogName(n)
				if !w.met[n.Sel.Pos()] && (writes(name) || strings.HasPrefix(name, "With") || name == "NewRecord") {
					w.fault(n, "the test does not understand this use of "+name)
				}
			case *ast.CallExpr:
				if p.mayLog(n) {
					w.fault(n, "the type of what has this method is not known")
				}
			}
			return true
		})
	}
}

// together joins the records of the same text.
func together(found []written) map[string]*record {
	all := map[string]*record{}
	for _, one := range found {
		r := all[one.text]
		if r == nil {
			r = &record{text: one.text, always: one.keys}
			all[one.text] = r
		}
		if !slices.Contains(r.levels, one.level) {
			r.levels = append(r.levels, one.level)
		}
		for _, k := range slices.Concat(r.always, one.keys) {
			if !(slices.Contains(r.always, k) && slices.Contains(one.keys, k)) && !slices.Contains(r.some, k) {
				r.some = append(r.some, k)
			}
		}
		r.always = slices.DeleteFunc(slices.Clone(r.always), func(k string) bool { return slices.Contains(r.some, k) })
	}
	order := []string{"ERROR", "WARN", "INFO", "DEBUG"}
	for _, r := range all {
		slices.Sort(r.some)
		slices.SortFunc(r.levels, func(a, b string) int { return slices.Index(order, a) - slices.Index(order, b) })
	}
	return all
}

func (w *walk) fault(at ast.Node, text string) {
	w.faults = append(w.faults, fset.Position(at.Pos()).String()+": "+text)
}

var logMethods = map[string]string{"Debug": "DEBUG", "Info": "INFO", "Warn": "WARN", "Error": "ERROR"}

// writes reports whether a method of *slog.Logger, or a function of slog, writes a record.
func writes(name string) bool {
	return name == "Log" || name == "LogAttrs" || logMethods[strings.TrimSuffix(name, "Context")] != ""
}

// slogName is the name of a method of *slog.Logger, or of a function of slog; else "".
func (p *goPackage) slogName(sel *ast.SelectorExpr) string {
	f, ok := p.info.Uses[sel.Sel].(*types.Func)
	if !ok || f.Pkg() == nil || f.Pkg().Path() != "log/slog" {
		return ""
	}
	if recv := f.Signature().Recv(); recv != nil && recv.Type().String() != "*log/slog.Logger" {
		return ""
	}
	return f.Name()
}

// mayLog reports whether a call may be one of a *slog.Logger: its type is not known, as that of a
// dependency.
func (p *goPackage) mayLog(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && len(call.Args) > 0 && writes(sel.Sel.Name) && p.info.Uses[sel.Sel] == nil
}

// callee is the full name of the function of this repository that is called; else "".
func (w *walk) callee(call *ast.CallExpr) string {
	var id *ast.Ident
	switch f := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
	default:
		return ""
	}
	if f, ok := w.in.info.Uses[id].(*types.Func); ok {
		if _, known := w.funcs[f.FullName()]; known {
			return f.FullName()
		}
	}
	return ""
}

// logs reports whether a function writes records, or calls a wrapper.
func (w *walk) logs(f funcOf) (found bool) {
	w.in = f.in
	ast.Inspect(f.decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			found = found || writes(f.in.slogName(n))
		case *ast.CallExpr:
			found = found || w.wrappers[w.callee(n)]
		}
		return !found
	})
	return found
}

// function walks a function whose arguments are not known.
func (w *walk) function(name string, f funcOf) {
	w.in, w.name, w.params = f.in, name, nil
	for _, field := range f.decl.Type.Params.List {
		for _, id := range field.Names {
			w.params = append(w.params, f.in.info.Defs[id])
		}
	}
	w.asked = conditions(f.decl)
	w.block(f.decl.Body.List, []*state{{map[types.Object]value{}, map[types.Object]int{}, map[string]bool{}}})
}

// conditions counts the parts of conditions of a function.
func conditions(f *ast.FuncDecl) map[string]int {
	asked := map[string]int{}
	count := func(e ast.Expr) {
		ast.Inspect(e, func(n ast.Node) bool {
			if e, ok := n.(ast.Expr); ok {
				text, _ := positive(e)
				asked[text]++
			}
			return true
		})
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			count(n.Cond)
		case *ast.SwitchStmt:
			for _, c := range n.Body.List {
				for _, e := range c.(*ast.CaseClause).List {
					count(e)
				}
			}
		}
		return true
	})
	return asked
}

// positive is the text of a condition without its negation, and whether it is negated.
func positive(e ast.Expr) (text string, negated bool) {
	if b, ok := e.(*ast.BinaryExpr); ok && b.Op == token.NEQ {
		return types.ExprString(&ast.BinaryExpr{X: b.X, Op: token.EQL, Y: b.Y}), true
	}
	return types.ExprString(e), false
}

// write notes a record.
func (w *walk) write(at ast.Expr, level, text value, args []value) {
	switch {
	case text.known == aText && strings.HasSuffix(text.text, ": "): // a row of a table without a record
	case text.known == aText && level.known == aLevel:
		w.found = append(w.found, written{text.text, level.text, keys(args)})
	case slices.ContainsFunc(w.params, func(o types.Object) bool { return o == w.object(at) }):
		w.wrappers[w.name] = true
	default:
		w.fault(at, "the text or the level of the record is not known")
	}
}

// keys are the names of the attributes in the arguments of a record.
func keys(args []value) (out []string) {
	for i := 0; i < len(args); i++ {
		switch a := args[i]; a.known {
		case anAttr:
			for _, k := range a.items {
				out = append(out, k.text)
			}
		case aText:
			out = append(out, a.text)
			i++
		default:
			out = append(out, "?")
		}
	}
	return out
}

func (w *walk) object(e ast.Expr) types.Object {
	id, ok := ast.Unparen(e).(*ast.Ident)
	if !ok {
		return nil
	}
	if o := w.in.info.Defs[id]; o != nil {
		return o
	}
	return w.in.info.Uses[id]
}

// constantOf is the value of a constant.
func (w *walk) constantOf(e ast.Expr) value {
	tv := w.in.info.Types[e]
	switch {
	case tv.Value == nil:
	case tv.Value.Kind() == constant.String:
		return value{known: aText, text: constant.StringVal(tv.Value)}
	case tv.Value.Kind() == constant.Int && tv.Type.String() == "log/slog.Level":
		n, _ := constant.Int64Val(tv.Value)
		return value{known: aLevel, text: slog.Level(n).String()}
	}
	return value{}
}
