package main

import (
	"regexp"
	"slices"
	"strings"
)

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
