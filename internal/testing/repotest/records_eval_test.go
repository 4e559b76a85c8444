package repotest

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"
)

// evalAll returns lists of the values, of which the one at text may come from functions.
func (w *walk) evalAll(list []ast.Expr, s *state, text int) []branch {
	out := []branch{{value{known: aList}, s}}
	for i, e := range list {
		var next []branch
		for _, b := range out {
			inText := w.inText
			w.inText = i == text
			for _, one := range w.eval(e, b.s) {
				next = append(next, branch{value{known: aList, items: append(slices.Clip(b.v.items), one.v)}, one.s})
			}
			w.inText = inText
		}
		out = distinctBranches(next)
	}
	return out
}

func distinctBranches(in []branch) (out []branch) {
	seen := map[string]bool{}
	for _, b := range in {
		if k := b.v.String() + "\n" + b.s.key(); !seen[k] {
			seen[k] = true
			out = append(out, b)
		}
	}
	return out
}

// parts evaluates what an expression consists of, of which nothing is known itself.
func (w *walk) parts(s *state, list ...ast.Expr) []branch {
	out := w.evalAll(slices.DeleteFunc(list, func(e ast.Expr) bool { return e == nil }), s, -1)
	for i := range out {
		out[i].v = value{}
	}
	return distinctBranches(out)
}

func (w *walk) eval(e ast.Expr, s *state) []branch {
	if v := w.constantOf(e); v.known != nothing {
		return []branch{{v, s}}
	}
	switch e := e.(type) {
	case *ast.ParenExpr:
		return w.eval(e.X, s)
	case *ast.Ident:
		return []branch{{s.vars[w.object(e)], s}}
	case *ast.BinaryExpr:
		var out []branch
		for _, x := range w.eval(e.X, s) {
			for _, y := range w.eval(e.Y, x.s) {
				v := value{}
				if e.Op == token.ADD && x.v.known == aText && y.v.known == aText {
					v = value{known: aText, text: x.v.text + y.v.text}
				}
				out = append(out, branch{v, y.s})
			}
		}
		return distinctBranches(out)
	case *ast.CompositeLit:
		list := slices.Clone(e.Elts)
		for i, one := range list {
			if kv, ok := one.(*ast.KeyValueExpr); ok {
				list[i] = kv.Value
			}
		}
		if isList(w.in.info.Types[e].Type) {
			return w.evalAll(list, s, -1)
		}
		return w.parts(s, list...)
	case *ast.FuncLit:
		return []branch{{value{}, w.literal(e, s)}}
	case *ast.SelectorExpr:
		if name := w.in.slogName(e); writes(name) && logMethods[name] != "" {
			w.met[e.Sel.Pos()] = true
			return []branch{{value{known: aMethod, text: logMethods[name]}, s}}
		}
		return w.parts(s, e.X)
	case *ast.CallExpr:
		return w.call(e, s)
	case *ast.UnaryExpr:
		return w.parts(s, e.X)
	case *ast.StarExpr:
		return w.parts(s, e.X)
	case *ast.IndexExpr:
		return w.parts(s, e.X, e.Index)
	case *ast.SliceExpr:
		return w.parts(s, e.X)
	case *ast.TypeAssertExpr:
		return w.parts(s, e.X)
	}
	return []branch{{value{}, s}}
}

// literal walks a function that may be called from here on, and forgets what it assigns.
func (w *walk) literal(f *ast.FuncLit, s *state) *state {
	returned := w.returned
	w.returned = nil
	w.block(f.Body.List, []*state{s})
	w.returned = returned
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && a.Tok != token.DEFINE {
			for _, to := range a.Lhs {
				s = w.set(to, value{}, s)
			}
		}
		return true
	})
	return s
}

func (w *walk) call(e *ast.CallExpr, s *state) []branch {
	fun := ast.Unparen(e.Fun)
	if sel, ok := fun.(*ast.SelectorExpr); ok {
		switch name := w.in.slogName(sel); {
		case writes(name):
			w.met[sel.Sel.Pos()] = true
			return w.logCall(e, name, s)
		case name != "" && w.in.info.Types[e].Type.String() == "log/slog.Attr":
			return w.attrCall(e, name, s)
		}
	}
	if id, ok := fun.(*ast.Ident); ok {
		if m := s.vars[w.object(id)]; m.known == aMethod {
			return w.record(e, m, 0, s)
		}
		if b, ok := w.in.info.Uses[id].(*types.Builtin); ok && b.Name() == "append" {
			return w.appendCall(e, s)
		}
	}
	if out := w.row(e, s); out != nil {
		return out
	}
	name := w.callee(e)
	returns := ""
	if t := w.in.info.Types[e].Type; t != nil {
		returns = t.String()
	}
	if w.wrappers[name] || name != "" && (returns == "log/slog.Attr" || returns == "string" && w.inText) {
		return w.read(name, e, s)
	}
	return w.parts(s, append([]ast.Expr{e.Fun}, e.Args...)...)
}

// logCall is a call of a method that writes a record.
func (w *walk) logCall(e *ast.CallExpr, name string, s *state) []branch {
	at := 0
	switch {
	case name == "Log" || name == "LogAttrs":
		at = 2
	case strings.HasSuffix(name, "Context"):
		at = 1
	}
	return w.record(e, value{known: aLevel, text: logMethods[strings.TrimSuffix(name, "Context")]}, at, s)
}

// record notes the records of a call whose text is the argument at that place.
func (w *walk) record(e *ast.CallExpr, level value, at int, s *state) []branch {
	out := w.evalAll(e.Args, s, at)
	for i, b := range out {
		level, args := value{known: aLevel, text: level.text}, b.v.items
		if level.text == "" {
			level = args[at-1]
		}
		w.write(e.Args[at], level, args[at], expanded(e, args[at+1:]))
		out[i].v = value{}
	}
	return distinctBranches(out)
}

// expanded are arguments, with those of a list that is passed as it is.
func expanded(e *ast.CallExpr, args []value) []value {
	if last := len(args) - 1; e.Ellipsis != token.NoPos && args[last].known == aList {
		return slices.Concat(args[:last], args[last].items)
	}
	return args
}

// attrCall is a call of a function of slog that makes an attribute.
func (w *walk) attrCall(e *ast.CallExpr, name string, s *state) []branch {
	out := w.evalAll(e.Args, s, -1)
	for i, b := range out {
		args := b.v.items
		v := value{known: anAttr, items: args[:1]}
		if name == "Group" {
			v.items = nil
			for _, k := range keys(expanded(e, args[1:])) {
				if args[0].text != "" {
					k = args[0].text + "." + k
				}
				v.items = append(v.items, value{known: aText, text: k})
			}
		}
		out[i].v = v
	}
	return out
}

func (w *walk) appendCall(e *ast.CallExpr, s *state) []branch {
	out := w.evalAll(e.Args, s, -1)
	for i, b := range out {
		list, args := b.v.items[0], b.v.items[1:]
		if list.known == aList && len(args) > 0 {
			list.items = slices.Concat(list.items, expanded(e, args))
		}
		out[i].v = list
	}
	return out
}

// read walks a function of this repository with the arguments of a call, and returns what it returns.
func (w *walk) read(name string, e *ast.CallExpr, s *state) (out []branch) {
	f := w.funcs[name]
	if w.reading[name] {
		return w.parts(s, e.Args...)
	}
	w.reading[name] = true
	defer delete(w.reading, name)
	var params []types.Object
	for _, field := range f.decl.Type.Params.List {
		for _, id := range field.Names {
			params = append(params, f.in.info.Defs[id])
		}
	}
	variadic := f.in.info.Defs[f.decl.Name].(*types.Func).Signature().Variadic()
	for _, b := range w.evalAll(e.Args, s, -1) {
		within := &state{map[types.Object]value{}, map[types.Object]int{}, map[string]bool{}}
		for i, o := range params {
			switch last := i == len(params)-1; {
			case last && variadic && e.Ellipsis == token.NoPos:
				within.vars[o] = value{known: aList, items: b.v.items[min(i, len(b.v.items)):]}
			case i < len(b.v.items) && b.v.items[i].known != nothing:
				within.vars[o] = b.v.items[i]
			}
		}
		in, asked, returned, inText := w.in, w.asked, w.returned, w.inText
		values := []value{}
		w.in, w.asked, w.returned, w.inText = f.in, conditions(f.decl), &values, true
		w.block(f.decl.Body.List, []*state{within})
		w.in, w.asked, w.returned, w.inText = in, asked, returned, inText
		for _, v := range append(values, value{})[:max(1, len(values))] {
			out = append(out, branch{v, b.s})
		}
	}
	return distinctBranches(out)
}

// row is a call of a method like
//
//	func (o Outcome) Record() string { return outcomes[o].record }
//
// with a way for each row of the table, or nil. A variable that is the index keeps its row.
func (w *walk) row(e *ast.CallExpr, s *state) (out []branch) {
	f, ok := w.funcs[w.callee(e)]
	sel, isMethod := ast.Unparen(e.Fun).(*ast.SelectorExpr)
	if !ok || !isMethod || f.decl.Recv == nil || len(f.decl.Body.List) != 1 {
		return nil
	}
	r, ok := f.decl.Body.List[0].(*ast.ReturnStmt)
	if !ok || len(r.Results) != 1 {
		return nil
	}
	field, ok := r.Results[0].(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	at, ok := field.X.(*ast.IndexExpr)
	if !ok {
		return nil
	}
	of := w.object(sel.X)
	for i, fields := range f.in.table(at.X) {
		if known, is := s.rows[of]; is && of != nil && known != i {
			continue
		}
		v := value{known: aText}
		for _, one := range fields {
			kv, ok := one.(*ast.KeyValueExpr)
			if !ok || types.ExprString(kv.Key) != field.Sel.Name {
				continue
			}
			if tv := f.in.info.Types[kv.Value]; tv.Value != nil && tv.Value.Kind() == constant.Bool {
				v.text = tv.Value.String()
			} else if tv.Value != nil && tv.Value.Kind() == constant.String {
				v.text = constant.StringVal(tv.Value)
			}
		}
		after := s
		if of != nil {
			after = &state{s.vars, maps.Clone(s.rows), s.conds}
			after.rows[of] = i
		}
		out = append(out, branch{v, after})
	}
	return out
}

// table is the fields of the rows of a table, which is a variable of the package.
func (p *goPackage) table(e ast.Expr) (rows [][]ast.Expr) {
	id, ok := e.(*ast.Ident)
	if !ok {
		return nil
	}
	for _, file := range p.files {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Names) != 1 || p.info.Defs[spec.Names[0]] != p.info.Uses[id] || len(spec.Values) != 1 {
				return true
			}
			if table, ok := spec.Values[0].(*ast.CompositeLit); ok {
				for _, one := range table.Elts {
					if kv, ok := one.(*ast.KeyValueExpr); ok {
						one = kv.Value
					}
					if row, ok := one.(*ast.CompositeLit); ok {
						rows = append(rows, row.Elts)
					}
				}
			}
			return false
		})
	}
	return rows
}
