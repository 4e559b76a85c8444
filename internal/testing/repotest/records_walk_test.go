package repotest

import (
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"
)

// flow is the states after a statement, and those of ways that leave a loop or its present round.
type flow struct{ next, broken, continued []*state }

func (f *flow) add(other flow) {
	f.next = append(f.next, other.next...)
	f.broken = append(f.broken, other.broken...)
	f.continued = append(f.continued, other.continued...)
}

// ends joins the ways that end in a loop, or in a switch, with those behind it.
func (f flow) ends(loop bool) flow {
	f.next, f.broken = append(f.next, f.broken...), nil
	if loop {
		f.next, f.continued = append(f.next, f.continued...), nil
	}
	f.next = distinct(f.next)
	return f
}

// branch is what is known of an expression on one way.
type branch struct {
	v value
	s *state
}

func states(branches []branch) (out []*state) {
	for _, b := range branches {
		out = append(out, b.s)
	}
	return distinct(out)
}

func (w *walk) block(list []ast.Stmt, in []*state) flow {
	out := flow{next: in}
	for _, st := range list {
		before := out.next
		out.next = nil
		for _, s := range before {
			out.add(w.stmt(st, s))
		}
		if out.next = distinct(out.next); len(out.next) > 5000 {
			w.fault(st, "there are too many ways to here")
			return flow{}
		}
	}
	return out
}

// optional is a statement that may be missing.
func (w *walk) optional(st ast.Stmt, s *state) []*state {
	if st == nil {
		return []*state{s}
	}
	return w.stmt(st, s).next
}

func (w *walk) stmt(st ast.Stmt, s *state) (out flow) {
	switch st := st.(type) {
	case *ast.BlockStmt:
		return w.block(st.List, []*state{s})
	case *ast.LabeledStmt:
		return w.stmt(st.Stmt, s)
	case *ast.ExprStmt:
		return flow{next: states(w.eval(st.X, s))}
	case *ast.GoStmt:
		return flow{next: states(w.eval(st.Call, s))}
	case *ast.DeferStmt:
		return flow{next: states(w.eval(st.Call, s))}
	case *ast.SendStmt:
		return flow{next: states(w.eval(st.Value, s))}
	case *ast.AssignStmt:
		return flow{next: w.assign(st, s)}
	case *ast.DeclStmt:
		return flow{next: w.declare(st.Decl, s)}
	case *ast.ReturnStmt:
		for _, b := range w.evalAll(st.Results, s, -1) {
			if w.returned != nil && len(b.v.items) == 1 {
				*w.returned = append(*w.returned, b.v.items[0])
			}
		}
		return flow{}
	case *ast.BranchStmt:
		switch st.Tok {
		case token.BREAK:
			return flow{broken: []*state{s}}
		case token.CONTINUE:
			return flow{continued: []*state{s}}
		}
	case *ast.IfStmt:
		for _, s := range w.optional(st.Init, s) {
			yes, no := w.cond(st.Cond, s)
			out.add(w.block(st.Body.List, yes))
			for _, s := range no {
				if st.Else == nil {
					out.next = append(out.next, s)
				} else {
					out.add(w.stmt(st.Else, s))
				}
			}
		}
		return out
	case *ast.SwitchStmt:
		for _, s := range w.optional(st.Init, s) {
			out.add(w.cases(st, s))
		}
		return out.ends(false)
	case *ast.TypeSwitchStmt:
		for _, s := range w.optional(st.Init, s) {
			for _, s := range w.optional(st.Assign, s) {
				out.next = append(out.next, s)
				for _, c := range st.Body.List {
					out.add(w.block(c.(*ast.CaseClause).Body, []*state{s}))
				}
			}
		}
		return out.ends(false)
	case *ast.SelectStmt:
		for _, c := range st.Body.List {
			clause := c.(*ast.CommClause)
			out.add(w.block(clause.Body, w.optional(clause.Comm, s)))
		}
		return out.ends(false)
	case *ast.ForStmt:
		return w.loop(w.optional(st.Init, s), func(s *state) flow {
			yes := []*state{s}
			if st.Cond != nil {
				yes, _ = w.cond(st.Cond, s)
			}
			body := w.block(st.Body.List, yes)
			if st.Post != nil {
				body.add(w.block([]ast.Stmt{st.Post}, body.next))
			}
			return body
		})
	case *ast.RangeStmt:
		for _, e := range []ast.Expr{st.Key, st.Value} {
			if o := w.object(e); o != nil {
				s = s.with(o, value{})
			}
		}
		return w.loop(states(w.eval(st.X, s)), func(s *state) flow { return w.block(st.Body.List, []*state{s}) })
	}
	return flow{next: []*state{s}}
}

// loop has no, one and two rounds.
func (w *walk) loop(in []*state, round func(*state) flow) flow {
	out := flow{next: in}
	for range 2 {
		for _, s := range distinct(out.next) {
			out.add(round(s))
		}
		out = out.ends(true)
	}
	return out
}

func (w *walk) cases(st *ast.SwitchStmt, s *state) (out flow) {
	rest := []*state{s}
	if st.Tag != nil {
		rest = states(w.eval(st.Tag, s))
	}
	var otherwise *ast.CaseClause
	for _, c := range st.Body.List {
		clause := c.(*ast.CaseClause)
		if clause.List == nil {
			otherwise = clause
			continue
		}
		var enter []*state
		for _, e := range clause.List {
			if st.Tag != nil {
				enter = append(enter, rest...)
				continue
			}
			var pass []*state
			for _, s := range rest {
				yes, no := w.cond(e, s)
				enter, pass = append(enter, yes...), append(pass, no...)
			}
			rest = distinct(pass)
		}
		out.add(w.block(clause.Body, distinct(enter)))
	}
	if otherwise == nil {
		out.next = append(out.next, rest...)
		return out
	}
	out.add(w.block(otherwise.Body, rest))
	return out
}

// cond returns the states in which a condition holds, and those in which it does not.
func (w *walk) cond(e ast.Expr, s *state) (yes, no []*state) {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return w.cond(e.X, s)
	case *ast.UnaryExpr:
		if e.Op == token.NOT {
			no, yes = w.cond(e.X, s)
			return yes, no
		}
	case *ast.BinaryExpr:
		first := func(e ast.Expr) ([]*state, []*state) { return w.cond(e, s) }
		if e.Op == token.LAND || e.Op == token.LOR {
			yes, no = first(e.X)
			more := &yes // the states that the second part decides
			if e.Op == token.LOR {
				more = &no
			}
			in := *more
			*more = nil
			for _, s := range in {
				y, n := w.cond(e.Y, s)
				yes, no = append(yes, y...), append(no, n...)
			}
			return distinct(yes), distinct(no)
		}
	case *ast.CallExpr:
		for _, b := range w.row(e, s) {
			if b.v.text == "true" {
				yes = append(yes, b.s)
			} else {
				no = append(no, b.s)
			}
		}
		if yes != nil || no != nil {
			return yes, no
		}
	}
	after := states(w.eval(e, s))
	text, negated := positive(e)
	if w.asked[text] < 2 || strings.Contains(text, "(") {
		return after, after
	}
	for _, s := range after {
		is, known := s.conds[text]
		if !known || is {
			yes = append(yes, s.assuming(text, true))
		}
		if !known || !is {
			no = append(no, s.assuming(text, false))
		}
	}
	if negated {
		return no, yes
	}
	return yes, no
}

func (s *state) assuming(cond string, is bool) *state {
	c := &state{s.vars, s.rows, maps.Clone(s.conds)}
	c.conds[cond] = is
	return c
}

func (w *walk) assign(st *ast.AssignStmt, s *state) []*state {
	var out []*state
	for _, b := range w.evalAll(st.Rhs, s, -1) {
		s := b.s
		for i, to := range st.Lhs {
			var v value
			before := s.vars[w.object(to)]
			switch {
			case st.Tok == token.ADD_ASSIGN && before.known == aText && b.v.items[0].known == aText:
				v = value{known: aText, text: before.text + b.v.items[0].text}
			case len(st.Lhs) == len(st.Rhs) && (st.Tok == token.ASSIGN || st.Tok == token.DEFINE):
				v = b.v.items[i]
			}
			s = w.set(to, v, s)
		}
		out = append(out, s)
	}
	return distinct(out)
}

// set assigns to a variable, or to a part of what a variable is.
func (w *walk) set(to ast.Expr, v value, s *state) *state {
	for part := false; ; part = true {
		switch e := ast.Unparen(to).(type) {
		case *ast.SelectorExpr:
			to = e.X
		case *ast.IndexExpr:
			to = e.X
		case *ast.StarExpr:
			to = e.X
		default:
			o := w.object(to)
			switch {
			case o == nil:
				return s
			case part:
				v = s.vars[o]
			}
			return s.with(o, v)
		}
	}
}

func (w *walk) declare(d ast.Decl, s *state) []*state {
	out := []*state{s}
	g, ok := d.(*ast.GenDecl)
	if !ok {
		return out
	}
	for _, spec := range g.Specs {
		vs, ok := spec.(*ast.ValueSpec)
		if !ok {
			continue
		}
		var next []*state
		for _, s := range out {
			for _, b := range w.evalAll(vs.Values, s, -1) {
				s := b.s
				for i, id := range vs.Names {
					switch o := w.in.info.Defs[id]; {
					case len(vs.Values) == len(vs.Names):
						s = s.with(o, b.v.items[i])
					case vs.Values == nil && o != nil:
						s = s.with(o, zero(o.Type()))
					}
				}
				next = append(next, s)
			}
		}
		out = distinct(next)
	}
	return out
}

func zero(t types.Type) value {
	switch {
	case isList(t):
		return value{known: aList}
	case t.String() == "string":
		return value{known: aText}
	}
	return value{}
}

func isList(t types.Type) bool {
	return t != nil && slices.Contains([]string{"[]any", "[]log/slog.Attr"}, t.String())
}
