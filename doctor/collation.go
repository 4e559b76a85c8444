package doctor

import "context"

const collationVersionsSQL = `/* outbox: versions of collations */
SELECT format('%I', d.datname), d.datcollversion, pg_database_collation_actual_version(d.oid)
  FROM pg_database d
 WHERE d.datname = current_database() AND d.datcollversion <> pg_database_collation_actual_version(d.oid)`

// checkCollations finds another order of text than the database's indexes were made with. The text of
// the outbox is in COLLATE "C", which has no versions.
func checkCollations(ctx context.Context, v *visit) error {
	var major int
	err := v.row(ctx, `SELECT current_setting('server_version_num')::integer / 10000`, nil, &major)
	if err != nil || major < 15 { // before it a database had no version
		return err
	}
	var database, made, now string
	return v.each(ctx, collationVersionsSQL, nil, []any{&database, &made, &now}, func() {
		v.add("collation-version", SeverityWarning, "", "the database has the order of text of version "+made+
			", and the server's library has that of "+now+
			": the app's indexes on text may miss rows, and accept a unique value twice",
			"REINDEX DATABASE "+database+", where a duplicate is an error: give one of the two rows another value; "+
				"then ALTER DATABASE "+database+" REFRESH COLLATION VERSION. The outbox's own indexes need neither: their collation is C")
	})
}
