package doctor

import (
	"context"
	"fmt"
)

// The needed size is that of a new index: entries with keys as wide as the statistics say, in pages
// that are nine tenths full. The number of entries is at most that of the table's rows, dead ones
// included, so the bloat of an index on few of the rows may be missed. An index whose table was never
// vacuumed or analyzed is not judged.
const indexSizesSQL = `/* outbox: sizes of indexes */
SELECT i.relname, pg_relation_size(i.oid), x.entries,
       ceil(x.entries * (x.width + 20) / (current_setting('block_size')::float8 * 0.9))::bigint * current_setting('block_size')::bigint
  FROM pg_index g JOIN pg_class i ON i.oid = g.indexrelid JOIN pg_class t ON t.oid = g.indrelid
  JOIN pg_namespace n ON n.oid = t.relnamespace
  LEFT JOIN pg_stat_all_tables s ON s.relid = t.oid
  CROSS JOIN LATERAL (
    SELECT GREATEST(i.reltuples, COALESCE(s.n_live_tup + s.n_dead_tup, 0))::bigint AS entries,
           (SELECT sum(COALESCE(w.avg_width, CASE WHEN a.attlen > 0 THEN a.attlen ELSE 32 END)) FROM pg_attribute a
              LEFT JOIN pg_stats w ON w.schemaname = n.nspname AND w.tablename = t.relname AND w.attname = a.attname
             WHERE a.attrelid = i.oid AND a.attnum > 0)::float8 AS width) AS x
 WHERE n.nspname = $1 AND g.indisvalid AND t.reltuples >= 0 AND pg_relation_size(i.oid) >= $2::bigint
 ORDER BY 2 DESC, 1`

const bloatFactor = 4

func checkIndexBloat(ctx context.Context, v *visit) error {
	var index string
	var size, entries, needed int64
	return v.each(ctx, indexSizesSQL, []any{v.schema, v.settings.bloated}, []any{&index, &size, &entries, &needed}, func() {
		if size > bloatFactor*needed {
			v.add("index-bloat", Warning, index, fmt.Sprintf("the index %s has %d MB for at most %s, which need about %d MB",
				index, size>>20, plural(entries, "entry", "entries"), needed>>20),
				"REINDEX INDEX CONCURRENTLY "+v.name(index)+", or admin.Client.Reindex (outbox reindex) for all indexes; "+
					"relays go on meanwhile")
		}
	})
}
