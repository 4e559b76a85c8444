package doctor

import (
	"io/fs"
	"regexp"
	"strings"
	"sync"

	"github.com/txoutbox/outbox/schema"
)

// object is something in the schema, as the migrations make it and as the catalogs have it.
type object struct{ kind, name string }

// What the migrations make. The statements are ours, so they need not be parsed in full.
var (
	makes   = regexp.MustCompile(`(?s)CREATE (?:OR REPLACE )?(?:UNIQUE )?(TABLE|VIEW|SEQUENCE|FUNCTION|INDEX|TRIGGER) (?:IF NOT EXISTS )?(?:outbox\.)?(\w+)([^;]*)`)
	comment = regexp.MustCompile(`--[^\n]*`)
)

// migrations are the texts of the files, without their comments. The last one has the functions,
// views and triggers.
var migrations = sync.OnceValue(func() (texts []string) {
	names, err := fs.Glob(schema.Files, "*.sql")
	if err != nil {
		panic(err)
	}
	for _, name := range names { // sorted
		text, err := fs.ReadFile(schema.Files, name)
		if err != nil {
			panic(err)
		}
		texts = append(texts, comment.ReplaceAllString(string(text), ""))
	}
	return texts
})

// expected are the objects of a version, with the statement of each.
func expected(version int) map[object]string {
	out := map[object]string{}
	known := min(version, len(migrations()))
	for _, text := range migrations()[:known] {
		for _, m := range makes.FindAllStringSubmatch(text, -1) {
			out[object{strings.ToLower(m[1]), m[2]}] = m[0]
			if m[1] == "TABLE" && strings.Contains(m[3], "PRIMARY KEY") {
				out[object{"index", m[2] + "_pkey"}] = ""
			}
		}
	}
	return out
}
