package main

import (
	"regexp"
	"slices"
	"strings"
)

// sqlMutation is a change of a text.
type sqlMutation struct {
	kind, text string
	from, to   int
	mutated    string
}

type sqlText struct {
	text   string
	tokens []sqlToken
	out    []sqlMutation
}

// mutateSQL returns the mutations of a statement, or of the body of a function in PL/pgSQL.
func mutateSQL(text string) []sqlMutation {
	s := &sqlText{text: text, tokens: tokenize(text)}
	for i := range s.tokens {
		s.clause(i)
		s.operator(i)
		s.condition(i)
	}
	s.statements()
	return s.out
}

func (s *sqlText) is(i int, words ...string) bool {
	return i >= 0 && i < len(s.tokens) && slices.Contains(words, s.tokens[i].text)
}

// add replaces the tokens from one to before another. The comments among them go, too.
func (s *sqlText) add(kind, text string, from, to int, mutated string) {
	begin, end := s.tokens[from].from, s.tokens[to-1].to
	s.out = append(s.out, sqlMutation{kind, text, begin, end, mutated})
}

func (s *sqlText) raw(from, to int) string {
	if from >= to {
		return ""
	}
	return s.text[s.tokens[from].from:s.tokens[to-1].to]
}

var clauseEnds = []string{"AND", "OR", "ORDER", "GROUP", "LIMIT", "OFFSET", "FOR", "RETURNING", "UNION", "HAVING",
	"THEN", "LOOP", "WHERE", "ON", "LEFT", "CROSS", "JOIN", "INTO", "ELSE", "END", "WHEN", "SELECT", ";", ","}

// end is the token that ends the clause after the token: the first at its depth among words.
func (s *sqlText) end(after int, words ...string) int {
	depth, cases, between := s.tokens[after].depth, 0, false
	for i := after + 1; i < len(s.tokens); i++ {
		t := s.tokens[i]
		switch {
		case t.depth < depth:
			return i
		case t.depth > depth:
		case t.text == "CASE":
			cases++
		case cases > 0:
			if t.text == "END" {
				cases--
			}
		case t.text == "BETWEEN":
			between = true
		case between && t.text == "AND":
			between = false
		case slices.Contains(words, t.text):
			return i
		}
	}
	return len(s.tokens)
}

// between reports whether the AND belongs to a BETWEEN.
func (s *sqlText) between(and int) bool {
	for i := and - 1; i >= 0 && s.tokens[i].depth >= s.tokens[and].depth; i-- {
		if s.tokens[i].depth == s.tokens[and].depth {
			if s.is(i, "BETWEEN") {
				return true
			}
			if s.is(i, "AND", "OR", "WHERE", ";", "ON", "SELECT", "WHEN", "IF") {
				return false
			}
		}
	}
	return false
}

// clause drops clauses and changes orders.
func (s *sqlText) clause(i int) {
	switch s.tokens[i].text {
	case "AND":
		if !s.between(i) {
			end := s.end(i, clauseEnds...)
			s.add("drop clause", s.raw(i, end), i, end, s.without("AND (", i+1, end, " OR true)"))
		}
	case "OR":
		if end := s.end(i, clauseEnds...); !s.is(i+1, "REPLACE") {
			s.add("drop clause", s.raw(i, end), i, end, s.without("OR (", i+1, end, " AND false)"))
		}
	case "WHERE":
		if end := s.end(i, clauseEnds...); s.is(end, "AND") {
			s.add("drop clause", s.raw(i+1, end+1), i+1, end+1, s.without("(", i+1, end, " OR true) AND"))
		}
	case "LIMIT":
		end := s.end(i, clauseEnds...)
		s.add("drop clause", s.raw(i, end), i, end, "")
	case "DISTINCT":
		if s.is(i-1, "SELECT") && !s.is(i+1, "ON") {
			s.add("drop clause", "DISTINCT", i, i+1, "")
		}
	case "FOR":
		s.lock(i)
	case "ORDER":
		s.order(i)
	}
}

// without is a condition without effect where it has parameters of the statement, which must all be
// there; else it is nothing.
func (s *sqlText) without(before string, from, to int, after string) string {
	if !slices.ContainsFunc(s.tokens[from:to], func(t sqlToken) bool { return t.text[0] == '$' }) {
		return ""
	}
	return before + s.raw(from, to) + after
}

func (s *sqlText) lock(i int) {
	end := i + 1
	for s.is(end, "NO", "KEY", "UPDATE", "SHARE") {
		end++
	}
	if end == i+1 {
		return // a loop
	}
	if s.is(end, "OF") {
		end += 2
	}
	lock := end
	for s.is(end, "SKIP", "LOCKED", "NOWAIT") {
		end++
	}
	s.add("drop clause", s.raw(i, end), i, end, "")
	if end > lock {
		s.add("drop clause", s.raw(i, lock)+" ["+s.raw(lock, end)+"]", lock, end, "")
	}
}

func (s *sqlText) order(i int) {
	if !s.is(i+1, "BY") {
		return
	}
	first := s.end(i, append(slices.Clone(clauseEnds), "ROWS", "RANGE")...)
	if !s.is(first, ",") {
		direction := " DESC"
		if s.is(first-1, "DESC") {
			direction = " ASC"
		}
		last := strings.TrimSuffix(s.raw(first-1, first), "DESC")
		s.add("order", s.raw(i, first)+" =>"+direction, first-1, first, last+direction)
		return
	}
	second := s.end(first, clauseEnds...)
	s.add("order", s.raw(i, second)+" swapped", i+2, second, s.raw(first+1, second)+", "+s.raw(i+2, first))
}

var sqlInteger, sqlOperand = regexp.MustCompile(`^\d+$`), regexp.MustCompile(`[\w)\]]$`)

// operator changes bounds and negates tests for NULL and existence.
func (s *sqlText) operator(i int) {
	to := map[string]string{"<": "<=", "<=": "<", ">": ">=", ">=": ">"}[s.tokens[i].text]
	around := s.raw(max(i-3, 0), min(i+4, len(s.tokens)))
	switch {
	case to != "":
		s.add("bound", around+" => "+to, i, i+1, to)
	case s.is(i, "+", "-") && i > 0 && i+1 < len(s.tokens) && sqlInteger.MatchString(s.tokens[i+1].text) &&
		sqlOperand.MatchString(s.tokens[i-1].text) && !s.is(i-1, "SELECT", "RETURN", "THEN", "ELSE"):
		s.add("bound", s.raw(i-1, i)+" ["+s.raw(i, i+2)+"]", i, i+2, "")
	case s.is(i, "NOT") && s.is(i-1, "IS") && s.is(i+1, "NULL"):
		s.add("negate", around, i, i+1, "")
	case s.is(i, "NULL") && s.is(i-1, "IS"):
		s.add("negate", around, i, i+1, "NOT NULL")
	case s.is(i, "NOT") && s.is(i+1, "EXISTS"):
		s.add("negate", around, i, i+1, "")
	}
}

// condition negates those of IF, ELSIF, EXIT WHEN and CASE WHEN.
func (s *sqlText) condition(i int) {
	if s.is(i, "IF") && s.is(i-1, "END") || s.is(i+1, "NOT", "EXISTS") && s.is(i, "IF") && s.is(i-1, "TABLE", "INDEX") {
		return
	}
	if !s.is(i, "IF", "ELSIF", "WHEN") || s.is(i, "IF") && i > 0 && !s.is(i-1, ";", "BEGIN", "THEN", "ELSE", "LOOP") {
		return
	}
	end := s.end(i, "THEN", ";")
	if s.is(i, "WHEN") && (end == i+2 || s.is(end, ";") && !s.is(i-1, "EXIT", "CONTINUE")) || end >= len(s.tokens) {
		return // WHEN value, or WHEN of a trigger
	}
	s.add("negate", s.raw(i, end), i+1, end, "NOT ("+s.raw(i+1, end)+")")
}

var sqlSimple = []string{"INSERT", "UPDATE", "DELETE", "PERFORM", "RAISE", "RETURN", "EXECUTE", "EXIT", "CONTINUE"}

// statements drops the simple ones of PL/pgSQL, and swaps neighbours.
func (s *sqlText) statements() {
	begin := slices.IndexFunc(s.tokens, func(t sqlToken) bool { return t.text == "BEGIN" })
	if begin < 0 {
		return
	}
	type statement struct{ from, to int }
	var before *statement
	for i := begin + 1; i < len(s.tokens); i++ {
		if s.tokens[i].depth != 0 || !s.is(i-1, ";", "BEGIN", "THEN", "ELSE", "LOOP") {
			continue
		}
		end := s.end(i-1, ";")
		if !s.is(i, sqlSimple...) && !s.is(i+1, ":=") || end >= len(s.tokens) {
			before = nil
			continue
		}
		if leaves := s.is(i, "RETURN", "EXIT", "CONTINUE", "RAISE"); !leaves {
			if before != nil && s.depends(before.from, before.to, i, end) {
				a, b := s.raw(before.from, before.to), s.raw(i, end)
				s.add("swap", a+" <> "+b, before.from, end, b+"; "+a)
			}
			before = &statement{i, end}
		} else {
			before = nil
		}
		if !s.is(i, "RETURN") || !s.is(end+1, "END") || s.is(end+2, "IF", "LOOP", "CASE") {
			s.add("drop", s.raw(i, end), i, end, "NULL")
		}
	}
}

// depends reports whether the order of two statements may matter: one of them is no assignment, or has
// the other one's variable.
func (s *sqlText) depends(from, to, from2, to2 int) bool {
	if !s.is(from+1, ":=") || !s.is(from2+1, ":=") {
		return true
	}
	has := func(from, to int, name string) bool {
		return slices.ContainsFunc(s.tokens[from:to], func(t sqlToken) bool { return t.text == name })
	}
	return has(from, to, s.tokens[from2].text) || has(from2, to2, s.tokens[from].text)
}

// sqlToken is a word, a number, a literal or a sign of SQL.
type sqlToken struct {
	text     string
	from, to int
	depth    int // of parentheses; those themselves have the depth outside
}

var sqlTokens = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"[^"]*"|\$\d+|` +
	`[A-Za-z_][A-Za-z_0-9$.]*|\d+(?:\.\d+)?|:=|=>|<>|<=|>=|!=|->>?|[-+*/<>=~!@#%^&|?:]+|\S`)

func tokenize(text string) (out []sqlToken) {
	depth := 0
	for _, at := range sqlTokens.FindAllStringIndex(text, -1) {
		t := text[at[0]:at[1]]
		if strings.HasPrefix(t, "--") || strings.HasPrefix(t, "/*") {
			continue
		}
		if t == ")" || t == "]" {
			depth--
		}
		out = append(out, sqlToken{t, at[0], at[1], depth})
		if t == "(" || t == "[" {
			depth++
		}
	}
	return out
}

// sqlBody is a function or a view of the schema.
type sqlBody struct {
	name     string
	file     string
	from, to int
}

var (
	sqlObject = regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?(FUNCTION|PROCEDURE|VIEW) outbox\.(\w+)`)
	sqlCreate = regexp.MustCompile(`(?m)^CREATE `)
	sqlQuoted = regexp.MustCompile(`(?s)\$\$(.*)\$\$`)
	sqlReturn = regexp.MustCompile(`(?s)\bRETURN\b(.*?);\n`)
	sqlSelect = regexp.MustCompile(`(?s)\bAS\b(.*?);\n`)
)

// bodies are those of a schema's files, in the order of their application: the last definition of
// each counts.
func bodies(files []string, texts map[string]string) (out []sqlBody) {
	for _, file := range files {
		text := texts[file]
		for _, at := range sqlObject.FindAllStringSubmatchIndex(text, -1) {
			rest := text[at[1]:]
			if next := sqlCreate.FindStringIndex(rest); next != nil {
				rest = rest[:next[0]]
			}
			within := sqlQuoted.FindStringSubmatchIndex(rest)
			switch {
			case within != nil:
			case text[at[2]:at[3]] == "VIEW":
				within = sqlSelect.FindStringSubmatchIndex(rest)
			default:
				within = sqlReturn.FindStringSubmatchIndex(rest)
			}
			if within == nil {
				continue
			}
			b := sqlBody{text[at[4]:at[5]], file, at[1] + within[2], at[1] + within[3]}
			out = slices.DeleteFunc(out, func(o sqlBody) bool { return o.name == b.name })
			out = append(out, b)
		}
	}
	return out
}
