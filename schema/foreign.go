package schema

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/txoutbox/outbox/internal/pgerr"
)

// These find the objects that the migrations make. The statements are ours, so they need not be
// parsed in full.
var (
	makes    = regexp.MustCompile(`CREATE (?:OR REPLACE )?(?:UNIQUE )?(TABLE|VIEW|SEQUENCE|INDEX|FUNCTION) (?:IF NOT EXISTS )?(?:outbox\.)?(\w+)`)
	comments = regexp.MustCompile(`--[^\n]*`)
)

// made are the names of the relations and functions that the files make, for an array in SQL.
func made(files []string) (relations, functions string) {
	var r, f []string
	for _, text := range files {
		for _, m := range makes.FindAllStringSubmatch(comments.ReplaceAllString(text, ""), -1) {
			if m[1] == "FUNCTION" {
				f = append(f, m[2])
			} else {
				r = append(r, m[2])
			}
		}
	}
	slices.Sort(r)
	slices.Sort(f)
	return strings.Join(slices.Compact(r), ","), strings.Join(slices.Compact(f), ",")
}

// One snapshot shows the objects, and that there is no migration table: another process that migrates
// meanwhile commits it with them. A type of a table's name is in its way.
const foreignSQL = `-- schema: objects that have the outbox's names
SELECT coalesce(string_agg(o.what, ', ' ORDER BY o.what), '')
  FROM (SELECT CASE c.relkind WHEN 'i' THEN 'index' WHEN 'I' THEN 'index' WHEN 'S' THEN 'sequence' WHEN 'v' THEN 'view' WHEN 'm' THEN 'view'
                              WHEN 'c' THEN 'type' ELSE 'table' END || ' ' || c.relname AS what
          FROM pg_class c WHERE c.relnamespace = to_regnamespace('outbox') AND c.relname = ANY ('{%[1]s}')
         UNION SELECT 'type ' || t.typname FROM pg_type t
          WHERE t.typnamespace = to_regnamespace('outbox') AND t.typname = ANY ('{%[1]s}') AND t.typtype IN ('d', 'e', 'r')
         UNION SELECT 'function ' || p.proname FROM pg_proc p
          WHERE p.pronamespace = to_regnamespace('outbox') AND p.proname = ANY ('{%[2]s}')) AS o
 WHERE NOT EXISTS (SELECT FROM pg_class m WHERE m.relnamespace = to_regnamespace('outbox') AND m.relname = 'migration')`

// checkForeign refuses a schema without a migration table in which there are objects of the names
// that the migrations use: an app's own table task would be taken for the outbox's.
func (s *settings) checkForeign(ctx context.Context, q Querier) error {
	relations, functions := made(append(slices.Clone(s.files), s.present.functions, s.present.relations))
	var names string
	err := q.QueryRowContext(ctx, rename(fmt.Sprintf(foreignSQL, relations, functions), s.name)).Scan(&names)
	if err != nil {
		return fmt.Errorf("look for objects of the outbox's names: %w", pgerr.WithoutDSN(err))
	}
	if names == "" {
		return nil
	}
	return foreignError(s.name, names)
}

const mostNamed = 5

// foreignError names the objects that prevent the migration.
func foreignError(name, objects string) error {
	if all := strings.Split(objects, ", "); len(all) > mostNamed {
		objects = fmt.Sprintf("%s and %d more", strings.Join(all[:mostNamed], ", "), len(all)-mostNamed)
	}
	return fmt.Errorf("%w: the schema %q has objects that are not the outbox's, and have its names: %s: "+
		"give the outbox a schema of its own by schema.Schema, or rename them", ErrNotMigrated, name, objects)
}
