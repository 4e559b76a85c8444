package doctor

// The needed size is that of a new index: entries with keys as wide as the statistics say, in pages
// that are nine tenths full. The number of entries is at most that of the table's rows, dead ones
// included, so the bloat of an index on few of the rows may be missed. An index whose table was never
// vacuumed or analyzed is not judged.
const indexBloatSQL = `/* outbox: sizes of indexes */
SELECT 'warning', i.relname,
       format('the index %s has %s MB for at most %s entries, which need about %s MB',
              i.relname, pg_relation_size(i.oid) >> 20, x.entries, needed::bigint >> 20),
       format('REINDEX INDEX CONCURRENTLY outbox.%I, or admin.Client.Reindex (outbox reindex) for all indexes; ' ||
              'relays go on meanwhile', i.relname)
  FROM pg_index g JOIN pg_class i ON i.oid = g.indexrelid JOIN pg_class t ON t.oid = g.indrelid
  JOIN pg_namespace n ON n.oid = t.relnamespace
  LEFT JOIN pg_stat_all_tables s ON s.relid = t.oid
  CROSS JOIN LATERAL (
    SELECT GREATEST(i.reltuples, COALESCE(s.n_live_tup + s.n_dead_tup, 0))::bigint AS entries,
           (SELECT sum(COALESCE(w.avg_width, CASE WHEN a.attlen > 0 THEN a.attlen ELSE 32 END)) FROM pg_attribute a
              LEFT JOIN pg_stats w ON w.schemaname = n.nspname AND w.tablename = t.relname AND w.attname = a.attname
             WHERE a.attrelid = i.oid AND a.attnum > 0)::float8 AS width,
           current_setting('block_size')::float8 AS page) AS x
  CROSS JOIN LATERAL (SELECT ceil(x.entries * (x.width + 20) / (x.page * 0.9)) * x.page AS needed) AS y
 WHERE n.nspname = $1 AND g.indisvalid AND t.reltuples >= 0 AND pg_relation_size(i.oid) >= $2::bigint
   AND pg_relation_size(i.oid) > 4 * needed
 ORDER BY pg_relation_size(i.oid) DESC, 2`
