package doctor

import (
	"context"
	"fmt"
)

const versionNumberSQL = `/* outbox: the server's version */
SELECT current_setting('server_version_num')::integer`

const collationsSQL = `/* outbox: versions of collations */
SELECT format('%I', d.datname), d.datcollversion, pg_database_collation_actual_version(d.oid)
  FROM pg_database d
 WHERE d.datname = current_database() AND d.datcollversion <> pg_database_collation_actual_version(d.oid)`

const indexCollationsSQL = `/* outbox: versions of the collations of indexes */
SELECT i.indexrelid::regclass::text, c.oid::regcollation::text, c.collversion, pg_collation_actual_version(c.oid)
  FROM pg_index i JOIN pg_class r ON r.oid = i.indrelid JOIN pg_namespace n ON n.oid = r.relnamespace, unnest(i.indcollation) AS k (oid)
  JOIN pg_collation c ON c.oid = k.oid
 WHERE n.nspname = $1 AND c.collversion <> pg_collation_actual_version(c.oid)
 ORDER BY 1, 2`

func checkCollations(ctx context.Context, v *visit) error {
	add := func(subject, of, made, now, do string) {
		v.add("collation-version", Warning, subject,
			fmt.Sprintf("%s has the order of version %s, and the server's library has that of %s: "+
				"indexes on text in it may miss rows, and accept a unique value twice", of, made, now), do)
	}
	var database, index, collation, made, now string
	err := v.each(ctx, indexCollationsSQL, []any{v.schema}, []any{&index, &collation, &made, &now}, func() {
		add(index, "the collation "+collation+", which it is in,", made, now,
			"REINDEX INDEX "+index+", and when all indexes in this collation are built anew, ALTER COLLATION "+collation+" REFRESH VERSION")
	})
	if err != nil {
		return err
	}
	var number int
	if err := v.row(ctx, versionNumberSQL, nil, &number); err != nil || number < 150000 { // before it a database had no version
		return err
	}
	return v.each(ctx, collationsSQL, nil, []any{&database, &made, &now}, func() {
		add("", "the collation of the database "+database, made, now,
			"REINDEX DATABASE "+database+", where a duplicate is an error: delete one of the rows; then ALTER DATABASE "+database+
				" REFRESH COLLATION VERSION. The outbox's own indexes need neither: their collation is C")
	})
}
