package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// goFile finds the mutants of one file.
type goFile struct {
	*source
	code     *code
	path     string // from the root
	text     string
	function string
}

func (f *goFile) raw(n ast.Node) string { return f.text[f.at(n.Pos()):f.at(n.End())] }
func (f *goFile) at(p token.Pos) int    { return f.fset.Position(p).Offset }

// add adds a mutant, which has another text in place of the nodes from one to another.
func (f *goFile) add(kind, text string, from, to ast.Node, mutated string) {
	f.code.add(&mutant{file: f.path, function: f.function, kind: kind, text: text,
		path: f.path, changed: f.text[:f.at(from.Pos())] + mutated + f.text[f.at(to.End()):]})
}

// find adds the mutants of all functions of the file.
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
			case *ast.CallExpr:
				f.extreme(n)
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
	if text := f.raw(e); text != "err != nil" && text != "err == nil" {
		f.add("negate", text, e, e, "!("+text+")")
	}
}

var bounds = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
}

// binary changes bounds, and drops operands of && and ||, and + 1.
func (f *goFile) binary(b *ast.BinaryExpr) {
	if f.info.Types[b].Value != nil {
		return // a constant
	}
	x, y := f.raw(b.X), f.raw(b.Y)
	used := " || false && (" + f.raw(b) + "))" // so that all variables are used
	switch b.Op {
	case token.LAND, token.LOR:
		op := " " + b.Op.String() + " "
		f.add("drop operand", "["+x+op+"] "+y, b, b, "("+y+used)
		f.add("drop operand", x+" ["+op+y+"]", b, b, "("+x+used)
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		to := bounds[b.Op].String()
		f.add("bound", x+" "+b.Op.String()+" "+y+" => "+to, b, b, x+" "+to+" "+y)
	case token.ADD, token.SUB:
		if lit, ok := b.Y.(*ast.BasicLit); ok && lit.Kind == token.INT && !calls(b.X) {
			f.add("bound", x+" ["+b.Op.String()+" "+y+"]", b, b, "("+x+")")
		}
	}
}

// extreme swaps min and max.
func (f *goFile) extreme(c *ast.CallExpr) {
	id, ok := c.Fun.(*ast.Ident)
	if !ok || id.Name != "min" && id.Name != "max" || f.info.Types[c].Value != nil || slices.ContainsFunc(c.Args, calls) {
		return
	}
	other := map[string]string{"min": "max", "max": "min"}[id.Name]
	f.add("bound", f.raw(c)+" => "+other, c, c, other+strings.TrimPrefix(f.raw(c), id.Name))
}

// calls reports whether an expression calls a function that may do anything.
func calls(e ast.Expr) (any bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			id, ok := c.Fun.(*ast.Ident)
			any = any || !ok || !slices.Contains([]string{"len", "cap", "min", "max", "int", "int64", "float64"}, id.Name)
		}
		return !any
	})
	return any
}

// drop drops a statement. Its text stays, so that all variables are used.
func (f *goFile) drop(s ast.Stmt) { f.add("drop", f.raw(s), s, s, "if false {\n"+f.raw(s)+"\n}") }

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

// statements drops statements, and swaps neighbours.
func (f *goFile) statements(list []ast.Stmt) {
	swapped := false
	for i, s := range list {
		if !f.simple(s) {
			swapped = false
			continue
		}
		f.drop(s)
		if swapped = !swapped && i+1 < len(list) && f.simple(list[i+1]) && f.depends(s, list[i+1]); swapped {
			a, b := f.raw(s), f.raw(list[i+1])
			f.add("swap", a+" <> "+b, s, list[i+1], b+"\n"+a)
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

// depends reports whether the order of two statements may matter.
func (f *goFile) depends(a, b ast.Stmt) bool {
	names := func(s ast.Stmt) map[types.Object]bool {
		out := map[types.Object]bool{}
		ast.Inspect(s, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if fn := f.info.Types[n.Fun]; !fn.IsBuiltin() && !fn.IsType() {
					out[nil] = true
				}
			case *ast.Ident:
				if v, ok := f.info.Uses[n].(*types.Var); ok {
					out[v] = true
				}
			}
			return true
		})
		return out
	}
	written := func(s ast.Stmt) (out []types.Object) {
		if a, ok := s.(*ast.AssignStmt); ok {
			for _, e := range a.Lhs {
				switch e := e.(type) {
				case *ast.Ident:
					out = append(out, f.info.Uses[e])
				case *ast.SelectorExpr:
					out = append(out, f.info.Uses[e.Sel])
				}
			}
		}
		return out
	}
	inA, inB := names(a), names(b)
	if inA[nil] || inB[nil] {
		return true
	}
	return slices.ContainsFunc(written(a), func(o types.Object) bool { return inB[o] }) ||
		slices.ContainsFunc(written(b), func(o types.Object) bool { return inA[o] })
}
