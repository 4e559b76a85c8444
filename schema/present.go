package schema

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"strings"
	"sync"
)

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
