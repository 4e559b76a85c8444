package admin

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"

	"github.com/lib/pq"
)

// leftover is the name of an index that a broken REINDEX CONCURRENTLY left behind.
var leftover = regexp.MustCompile(`_cc(new|old)[0-9]*$`)

// Index is an index that [Client.Reindex] has built anew.
//
// Experimental: a minor version may change it.
type Index struct {
	Table, Name             string
	BytesBefore, BytesAfter int64
}

const listIndexesSQL = `/* outbox: indexes */
SELECT t.relname, i.relname, x.indisvalid, pg_catalog.pg_relation_size(i.oid)
  FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
  JOIN pg_catalog.pg_class t ON t.oid = x.indrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
 WHERE n.nspname = $1 AND t.relkind = 'r' ORDER BY t.relname, i.relname`

const indexSizeSQL = `/* outbox: size of an index */
SELECT COALESCE(pg_catalog.pg_relation_size(pg_catalog.to_regclass($1)), 0)`

// Reindex rebuilds all indexes of the outbox, one after the other, with REINDEX INDEX CONCURRENTLY:
// relays and enqueueing go on. A bloated index stays large after vacuum has emptied it; Reindex makes
// it small. Relays never do it by themselves.
//
// Each build waits for all older transactions, so a forgotten one holds it up until ctx ends. The
// role must own the tables. It returns the finished indexes also with an error, which names the
// index. The next Reindex drops the leftovers of a broken build: invalid indexes whose names end in
// _ccnew or _ccold and a number. A second Reindex at the same time may fail with a deadlock, and does
// no harm. The audit log has an entry before it and an entry after it.
//
// Experimental: a minor version may change it.
func (c *Client) Reindex(ctx context.Context) (done []Index, err error) {
	db, err := c.pool("Reindex")
	if err != nil {
		return nil, err
	}
	err = c.audited(ctx, AuditEntry{Action: ActionReindex, Target: "all indexes"}, func() (int64, error) {
		conn, err := db.Conn(ctx)
		if err == nil {
			defer func() { _ = conn.Close() }()
			done, err = c.reindex(ctx, conn)
		}
		return 0, failed("reindex "+string(c.schema), err)
	})
	return done, err
}

func (c *Client) reindex(ctx context.Context, conn *sql.Conn) (done []Index, err error) {
	indexes, err := rows(ctx, conn, listIndexesSQL, []any{string(c.schema)}, func(row scanner, i *index) error {
		return row.Scan(&i.Table, &i.Name, &i.valid, &i.BytesBefore)
	})
	if err != nil {
		return nil, err
	}
	if len(indexes) == 0 {
		return nil, fmt.Errorf("there is no outbox in this schema")
	}
	for _, i := range indexes {
		name := pq.QuoteIdentifier(string(c.schema)) + "." + pq.QuoteIdentifier(i.Name)
		if !i.valid && !leftover.MatchString(i.Name) {
			continue // another session builds it
		}
		if !i.valid {
			if _, err := conn.ExecContext(ctx, "DROP INDEX CONCURRENTLY IF EXISTS "+name); err != nil {
				return done, fmt.Errorf("drop the invalid index %s: %w", name, err)
			}
			continue
		}
		if _, err := conn.ExecContext(ctx, "REINDEX INDEX CONCURRENTLY "+name); err != nil {
			return done, fmt.Errorf("%s: %w", name, err)
		}
		if err := conn.QueryRowContext(ctx, indexSizeSQL, name).Scan(&i.BytesAfter); err != nil {
			return done, fmt.Errorf("size of %s: %w", name, err)
		}
		done = append(done, i.Index)
	}
	return done, nil
}

type index struct {
	Index
	valid bool
}
