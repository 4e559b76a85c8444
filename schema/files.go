package schema

import (
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"sync"
)

// Files are the migrations, 00019_relays.sql and so on, with goose's annotations, for the schema
// "outbox". The first six are the baseline; versions 1 to 18 were before the first release, and
// cannot be migrated. Each is applied in one transaction, records itself in outbox.migration, and
// does no harm when it is applied again right away. Going back to an older one after a newer one is
// not safe.
//
//go:embed 0*.sql
var Files embed.FS

const baseline = 19 // the number of the first file

// Version is the version of the newest migration in this package.
func Version() int { return baseline + len(migrations()) - 1 }

// migrations are the texts of Files in order, the first for the baseline. The names are checked
// here, since a gap or a duplicate would be applied wrongly; it panics, as only a mistake in this
// package can cause it.
var migrations = sync.OnceValue(func() []string {
	entries, err := fs.ReadDir(Files, ".")
	if err != nil {
		panic(err)
	}
	texts := make([]string, len(entries))
	for i, e := range entries { // sorted by name
		digits, _, _ := strings.Cut(e.Name(), "_")
		if n, err := strconv.Atoi(digits); err != nil || len(digits) != 5 || n != baseline+i {
			panic(fmt.Sprintf("schema: the file %s is not number %05d", e.Name(), baseline+i))
		}
		text, err := Files.ReadFile(e.Name())
		if err != nil {
			panic(err)
		}
		texts[i] = string(text)
	}
	return texts
})

// SQL is all migrations as one script for a schema of the given name, to be applied in one
// transaction: write it to a file and run psql -v ON_ERROR_STOP=1 -1 -f, or give the file to goose.
// For the name "outbox" and one version at a time, see [Files].
func SQL(name string) (string, error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	const up = "-- +goose Up\n"
	var all strings.Builder
	all.WriteString(up) // goose wants it once
	for _, text := range migrations() {
		all.WriteString(strings.ReplaceAll(rename(text, name), up, ""))
	}
	return all.String(), nil
}
