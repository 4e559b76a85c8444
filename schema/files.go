package schema

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
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

//go:embed functions/*.sql relations.sql
var presentFiles embed.FS

// present is the present state of the functions, and of the relations: views and triggers. Its hashes
// are in the row of the newest migration. Functions are replaced without a lock on a table. To make a
// trigger waits for all who write to the table, so relations are made only if they have changed.
type present struct{ functions, relations string }

var current = sync.OnceValue(func() present {
	names, err := fs.Glob(presentFiles, "functions/*.sql") // sorted
	if err != nil {
		panic(err)
	}
	var functions strings.Builder
	for _, name := range names {
		functions.WriteString(read(presentFiles, name) + "\n")
	}
	return present{functions: functions.String(), relations: read(presentFiles, "relations.sql")}
})

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// hashes identify the state in the schema of that name, as migration.functions and
// migration.relations have it. The texts name the schema, so a renamed one needs them anew.
func (p present) hashes(name string) applied {
	return applied{functions: hash(rename(p.functions, name)), relations: hash(rename(p.relations, name))}
}

// applied are the hashes that a schema has; "" is not known.
type applied struct{ functions, relations string }

// presentSQL follows the files, in their transaction. The rows of the catalog that the files have
// written have this transaction's id, or that of a savepoint in it, which is newer. Each such object
// gets a comment; an object with that comment and an older id is of an older state, and goes. Triggers
// go before their functions.
const presentSQL = `-- schema: the present functions, views and triggers
{functions}{relations}
DO $$
DECLARE
  o    record;
  mark CONSTANT text    := 'made by outbox';
  mine CONSTANT integer := age(pg_current_xact_id()::xid);
BEGIN
  FOR o IN
    SELECT format('TRIGGER %I ON %s', g.tgname, c.oid::regclass) AS name, age(g.xmin) <= mine AS present
      FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid
     WHERE {replaced} AND c.relnamespace = 'outbox'::regnamespace
       AND (age(g.xmin) <= mine OR obj_description(g.oid, 'pg_trigger') = mark)
    UNION ALL
    SELECT format('VIEW %s', c.oid::regclass), age(r.xmin) <= mine
      FROM pg_class c JOIN pg_rewrite r ON r.ev_class = c.oid
     WHERE {replaced} AND c.relkind = 'v' AND c.relnamespace = 'outbox'::regnamespace
       AND (age(r.xmin) <= mine OR obj_description(c.oid, 'pg_class') = mark)
    UNION ALL
    SELECT format('FUNCTION %s', p.oid::regprocedure), age(p.xmin) <= mine
      FROM pg_proc p
     WHERE p.pronamespace = 'outbox'::regnamespace
       AND (age(p.xmin) <= mine OR obj_description(p.oid, 'pg_proc') = mark)
  LOOP
    IF o.present THEN
      EXECUTE format('COMMENT ON %s IS %L', o.name, mark);
    ELSIF EXISTS (SELECT FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND age(xmin) <= mine) THEN
      EXECUTE format('DROP %s', o.name);
    ELSE
      RAISE EXCEPTION 'apply the script in one transaction, as psql -1 does';
    END IF;
  END LOOP;
  UPDATE outbox.migration SET functions = '{functions hash}', relations = '{relations hash}'
   WHERE version = (SELECT max(version) FROM outbox.migration);
END
$$;
`

// script makes the present state in the schema of that name, where there was another: without
// relations if those are there.
func (p present) script(name string, there applied) string {
	want, relations, replaced := p.hashes(name), p.relations, "true"
	if there.relations == want.relations {
		relations, replaced = "", "false"
	}
	return rename(strings.NewReplacer("{functions}", p.functions, "{relations}", relations, "{replaced}", replaced,
		"{functions hash}", want.functions, "{relations hash}", want.relations).Replace(presentSQL), name)
}

// annotated is the script for goose, which would cut it at its semicolons.
func (p present) annotated(name string) string {
	return "\n-- +goose StatementBegin\n" + p.script(name, applied{}) + "-- +goose StatementEnd\n"
}
