package schema

import (
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"sync"

	"github.com/txoutbox/outbox/internal/schemaname"
)

//go:embed 0*.sql
var numbered embed.FS

// FS has the migrations as files, 00001_tables.sql and so on, with goose's annotations, for the
// schema "outbox". Each is applied in one transaction, records itself in outbox.migration, and does
// no harm when it is applied again right away. The last one has the functions, views and triggers
// after its own statements. Going back to an older one after a newer one is not safe.
func FS() fs.FS { return migrationFiles{} }

// migrationFiles add the present functions, views and triggers to the last of the numbered files.
type migrationFiles struct{}

func (migrationFiles) Open(name string) (fs.File, error) {
	f, err := numbered.Open(name)
	if entries := fileNames(); err != nil || name != entries[len(entries)-1] {
		return f, err
	}
	text := migrations()[Version()-1] + current().annotated(schemaname.Default)
	return &lastFile{File: f, text: strings.NewReader(text)}, nil
}

type lastFile struct {
	fs.File
	text *strings.Reader
}

func (f *lastFile) Read(b []byte) (int, error) { return f.text.Read(b) }

// Version is the version of the newest migration in this package.
func Version() int { return len(migrations()) }

// fileNames are those of the migrations, in order.
func fileNames() []string {
	names, err := fs.Glob(numbered, "*.sql") // sorted
	if err != nil {
		panic(err)
	}
	return names
}

// migrations are the texts of the numbered files in order. The names are checked here, since a gap
// or a duplicate would be applied wrongly; it panics, as only a mistake in this package can cause it.
var migrations = sync.OnceValue(func() []string {
	names := fileNames()
	texts := make([]string, len(names))
	for i, name := range names {
		digits, _, _ := strings.Cut(name, "_")
		if n, err := strconv.Atoi(digits); err != nil || len(digits) != 5 || n != i+1 {
			panic(fmt.Sprintf("schema: the file %s is not number %05d", name, i+1))
		}
		texts[i] = read(numbered, name)
	}
	return texts
})

// read is the text of an embedded file.
func read(files embed.FS, name string) string {
	text, err := files.ReadFile(name)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// SQL is all migrations with the functions, views and triggers as one script, to be applied in one
// transaction: write it to a file and run psql -v ON_ERROR_STOP=1 -1 -f, or give the file to goose.
// It does no harm when it is applied again, and makes what is missing. For the schema "outbox" and
// one version at a time, see [FS]. The error is that of an invalid name.
func SQL(opts ...SchemaOption) (string, error) {
	name, err := nameOf(opts)
	if err != nil {
		return "", err
	}
	const up = "-- +goose Up\n"
	var all strings.Builder
	all.WriteString(up) // goose wants it once
	for _, text := range migrations() {
		all.WriteString(rename(strings.ReplaceAll(text, up, ""), name))
	}
	all.WriteString(current().annotated(name))
	return all.String(), nil
}
