package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/txoutbox/outbox/schema"
)

// object is an object of the schema, as the migrations make it and as the catalogs have it.
type object struct{ kind, name string }

// The statements of the migrations are ours, so they need not be parsed in full. A column's line of
// CREATE TABLE begins with two blanks and its name.
var (
	makes = regexp.MustCompile(`(?s)CREATE (?:OR REPLACE )?(?:UNIQUE )?(TABLE|VIEW|SEQUENCE|FUNCTION|INDEX|TRIGGER) ` +
		`(?:IF NOT EXISTS )?(?:outbox\.)?(\w+)([^;]*)`)
	comment    = regexp.MustCompile(`--[^\n]*`)
	columnsOf  = regexp.MustCompile(`LIKE outbox\.(\w+)`)
	columnLine = regexp.MustCompile(`(?m)^  ([a-z]\w*) +[a-z]`)
	addsTo     = regexp.MustCompile(`ALTER TABLE outbox\.(\w+)([^;]*)`)
	addsColumn = regexp.MustCompile(`ADD COLUMN (?:IF NOT EXISTS )?(\w+)`)
)

// migrations is the text of the files, without comments.
var migrations = sync.OnceValue(func() string {
	names, err := fs.Glob(schema.Files, "*.sql") // sorted
	if err != nil {
		panic(err)
	}
	var all strings.Builder
	for _, name := range names {
		text, err := fs.ReadFile(schema.Files, name)
		if err != nil {
			panic(err)
		}
		all.WriteString(comment.ReplaceAllString(string(text), ""))
	}
	return all.String()
})

// expected are the objects of this program's version, with the statement of each.
func expected() map[object]string {
	out := map[object]string{}
	for _, m := range makes.FindAllStringSubmatch(migrations(), -1) {
		out[object{strings.ToLower(m[1]), m[2]}] = m[0]
		if m[1] == "TABLE" && strings.Contains(m[3], "PRIMARY KEY") {
			out[object{"index", m[2] + "_pkey"}] = ""
		}
	}
	return out
}

// expectedColumns are the columns of each table of this program's version.
func expectedColumns() map[string][]string {
	out := map[string][]string{}
	for _, m := range makes.FindAllStringSubmatch(migrations(), -1) {
		if m[1] != "TABLE" {
			continue
		}
		body, _, _ := strings.Cut(m[3], "\n)")
		if like := columnsOf.FindStringSubmatch(body); like != nil {
			out[m[2]] = slices.Clone(out[like[1]])
		}
		for _, c := range columnLine.FindAllStringSubmatch(body, -1) {
			out[m[2]] = append(out[m[2]], c[1])
		}
	}
	for _, m := range addsTo.FindAllStringSubmatch(migrations(), -1) {
		for _, c := range addsColumn.FindAllStringSubmatch(m[2], -1) {
			out[m[1]] = append(out[m[1]], c[1])
		}
	}
	return out
}

// knowsSchema reports whether the schema has this program's version. Otherwise the checks have the
// finding that they were not done: the objects of another version are unknown.
func (v *visit) knowsSchema(ctx context.Context, checks ...string) (bool, error) {
	version, _, _, err := v.versions(ctx)
	if err != nil || version == schema.Version() {
		return err == nil, err
	}
	for _, name := range checks {
		v.add(name, Info, "", fmt.Sprintf("not checked: the schema is at version %d, and this program knows version %d",
			version, schema.Version()), "")
	}
	return false, nil
}
