package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

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
