package access

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/txoutbox/outbox/schema"
)

// Object is an object of the schema, as the migrations make it and as the catalogs have it.
type Object struct{ Kind, Name string }

// Grant is a right that schema/roles.sql gives a group.
type Grant struct {
	Group   string `json:"group"`   // without the schema's name
	Right   string `json:"right"`   // SELECT
	Kind    string `json:"kind"`    // schema, table (or view), sequence, function
	Object  string `json:"object"`  // without the schema's name, "" for the schema itself
	Columns bool   `json:"columns"` // of some columns only
}

// The statements of the migrations and of the roles are ours, so they need not be parsed in full.
// Some of the roles' are executed as texts.
var (
	comment = regexp.MustCompile(`--[^\n]*`)
	makes   = regexp.MustCompile(`(?s)CREATE (?:OR REPLACE )?(?:UNIQUE )?(TABLE|VIEW|SEQUENCE|FUNCTION|INDEX|TRIGGER) ` +
		`(?:IF NOT EXISTS )?(?:outbox\.)?(\w+)([^;]*)`)
	// columnLine is a column in CREATE TABLE: two blanks, its name and its type.
	columnLine = regexp.MustCompile(`(?m)^  ([a-z]\w*) +[a-z]`)
	alterTable = regexp.MustCompile(`ALTER TABLE (?:IF EXISTS )?(?:ONLY )?outbox\.(\w+)([^;]*)`)
	dropColumn = regexp.MustCompile(`\bDROP\s+COLUMN\s+(?:IF EXISTS\s+)?([a-z]\w*)`)
	addColumn  = regexp.MustCompile(`\bADD\s+(?:COLUMN\s+)?(?:IF NOT EXISTS\s+)?([a-z]\w*)`)

	granted = regexp.MustCompile(`(?s)(?:^|\n|')GRANT ([^;']*?)\s+ON (FUNCTION|SEQUENCE|SCHEMA|TABLE)?\s*([^;']*?)\s+TO ([^;']*?)[;']`)
	right   = regexp.MustCompile(`\b(SELECT|INSERT|UPDATE|DELETE|EXECUTE|USAGE)\b\s*(\()?`)
	name    = regexp.MustCompile(`outbox[_.](\w+)`)
)

// script makes the schema of this program's version.
var script = sync.OnceValue(func() string {
	text, err := schema.SQL()
	if err != nil {
		panic(err) // the name is valid
	}
	return text
})

// Objects are those of this program's version, with the statement of each.
func Objects() map[Object]string { return objectsOf(script()) }

func objectsOf(script string) map[Object]string {
	out := map[Object]string{}
	for _, m := range makes.FindAllStringSubmatch(comment.ReplaceAllString(script, ""), -1) {
		out[Object{strings.ToLower(m[1]), m[2]}] = m[0]
		if m[1] == "TABLE" && strings.Contains(m[3], "PRIMARY KEY") {
			out[Object{"index", m[2] + "_pkey"}] = ""
		}
	}
	return out
}

// Columns are those of this program's version, as table.column.
func Columns() []string { return columnsOf(script()) }

func columnsOf(script string) (out []string) {
	columns := map[string][]string{}
	for o, statement := range objectsOf(script) {
		if o.Kind == "table" {
			for _, c := range columnLine.FindAllStringSubmatch(statement, -1) {
				columns[o.Name] = append(columns[o.Name], c[1])
			}
		}
	}
	for _, like := range []string{"dead_task", "done_task"} {
		columns[like] = append(columns[like], columns["task"]...)
	}
	for _, table := range alterTable.FindAllStringSubmatch(comment.ReplaceAllString(script, ""), -1) {
		for _, c := range addColumn.FindAllStringSubmatch(table[2], -1) {
			columns[table[1]] = append(columns[table[1]], c[1])
		}
		for _, c := range dropColumn.FindAllStringSubmatch(table[2], -1) {
			columns[table[1]] = slices.DeleteFunc(columns[table[1]], func(name string) bool { return name == c[1] })
		}
	}
	for table, names := range columns {
		for _, name := range names {
			out = append(out, table+"."+name)
		}
	}
	slices.Sort(out)
	return out
}

// Grants are the rights of this program's version.
var Grants = sync.OnceValue(func() (all []Grant) {
	script, err := schema.RolesSQL()
	if err != nil {
		panic(err) // the name is valid
	}
	for _, m := range granted.FindAllStringSubmatch(comment.ReplaceAllString(script, ""), -1) {
		kind := strings.ToLower(m[2])
		objects := [][]string{{"", ""}}
		if kind == "" {
			kind = "table"
		}
		if kind != "schema" {
			objects = name.FindAllStringSubmatch(m[3], -1)
		}
		for _, r := range right.FindAllStringSubmatch(m[1], -1) {
			for _, object := range objects {
				for _, group := range name.FindAllStringSubmatch(m[4], -1) {
					all = append(all, Grant{group[1], r[1], kind, object[1], r[2] != ""})
				}
			}
		}
	}
	return all
})
