package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// leftover is the name of an index that a broken REINDEX CONCURRENTLY left behind.
var leftover = regexp.MustCompile(`_cc(new|old)[0-9]*$`)

// Reindexed is an index that [Reindex] has built anew.
type Reindexed struct {
	Table, Index  string
	Before, After int64 // bytes
}

const listIndexesSQL = `/* outbox: indexes */
SELECT t.relname, i.relname, x.indisvalid, pg_relation_size(i.oid)
  FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid JOIN pg_namespace n ON n.oid = t.relnamespace
 WHERE n.nspname = $1 AND t.relkind = 'r' ORDER BY t.relname, i.relname`

const indexSizeSQL = `/* outbox: size of an index */
SELECT COALESCE(pg_relation_size(to_regclass($1)), 0)`

// Reindex builds all indexes of the outbox in the given schema ("" is "outbox") anew, one after the other, with REINDEX
// INDEX CONCURRENTLY: relays and enqueueing go on. Indexes that a day of bloat has grown stay large after
// vacuum has emptied them; this makes them small. Relays never do it by themselves.
//
// Each index waits for all transactions that are older than its build, so a forgotten one holds it up until ctx ends. The
// role must own the tables. It returns what it has done also with an error, which names the index; what a broken build
// leaves behind (an invalid index whose name ends in _ccnew or _ccold and a number) is dropped by the next Reindex.
// One at a time: a second one at once may fail with a deadlock, and does no harm.
func Reindex(ctx context.Context, db *sql.DB, schema string) ([]Reindexed, error) {
	if db == nil {
		return nil, errors.New("relay: Reindex: the *sql.DB is nil")
	}
	if schema == "" {
		schema = outbox.DefaultSchema
	}
	if !outbox.ValidSchema(schema) {
		return nil, fmt.Errorf("relay: Reindex: invalid schema %q: use a lower-case name like outbox: letters, digits and _ only, at most 63 bytes", schema)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("relay: reindex %s: %w", schema, pgerr.WithoutDSN(err))
	}
	defer func() { _ = conn.Close() }()
	indexes, err := listIndexes(ctx, conn, schema)
	if err != nil {
		return nil, fmt.Errorf("relay: reindex %s: %w", schema, err)
	}
	if len(indexes) == 0 {
		return nil, fmt.Errorf("relay: reindex %s: there is no outbox in this schema", schema)
	}
	var done []Reindexed
	for _, i := range indexes {
		name := pq.QuoteIdentifier(schema) + "." + pq.QuoteIdentifier(i.Index)
		if !i.valid && !leftover.MatchString(i.Index) {
			continue // somebody is building it
		}
		if !i.valid {
			if _, err := conn.ExecContext(ctx, "DROP INDEX CONCURRENTLY IF EXISTS "+name); err != nil {
				return done, fmt.Errorf("relay: drop the invalid index %s: %w", name, err)
			}
			continue
		}
		if _, err := conn.ExecContext(ctx, "REINDEX INDEX CONCURRENTLY "+name); err != nil {
			return done, fmt.Errorf("relay: reindex %s: %w", name, err)
		}
		if err := conn.QueryRowContext(ctx, indexSizeSQL, name).Scan(&i.After); err != nil {
			return done, fmt.Errorf("relay: size of %s: %w", name, err)
		}
		done = append(done, i.Reindexed)
	}
	return done, nil
}

type index struct {
	Reindexed
	valid bool
}

func listIndexes(ctx context.Context, conn *sql.Conn, schema string) ([]index, error) {
	rows, err := conn.QueryContext(ctx, listIndexesSQL, schema)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []index
	for rows.Next() {
		var i index
		if err := rows.Scan(&i.Table, &i.Index, &i.valid, &i.Before); err != nil {
			return nil, err
		}
		out = append(out, i)
	}
	return out, errors.Join(rows.Err(), rows.Close())
}
