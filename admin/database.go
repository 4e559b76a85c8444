package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/origin"
	"github.com/txoutbox/outbox/internal/wake"
)

// Experimental: a minor version may change them.
var (
	// ErrNotCopy is returned by Adopt in a database that is no copy, without another Environment.
	ErrNotCopy = errors.New("admin: this database is no copy")
	// ErrRelaysLive is returned by Adopt in a database in which relays run.
	ErrRelaysLive = errors.New("admin: relays run in this database: stop them first")
)

// Origin is the database that the tasks belong to, as it was noted. In a copy that is another one.
//
// Experimental: a minor version may change it.
type Origin struct {
	DatabaseID  string    // "": none is noted, before the first relay
	Name        string    // of the database
	Environment string    // relay.Config.Environment of the first relay that named one; "": none did
	Hidden      bool      // the server does not show its system identifier
	Copy        bool      // this database may be a copy: relays run nothing here
	Refused     string    // relay.Config.Environment of relays that run nothing here now, as Environment is another
	Problem     string    // of a copy, or if relays are Refused: why, with the original
	Remedy      string    // what to do then, which deletes nothing
	LastSeen    time.Time // the latest heartbeat of a relay: in a copy from before the copy was made
}

// Origin returns the database that the tasks belong to, and whether this is a copy of it. Only the
// environment tells a snapshot from its original: there a relay of another environment is Refused.
//
// Experimental: a minor version may change it.
func (c *Client) Origin(ctx context.Context) (o Origin, err error) {
	err = c.read(func(q outbox.Querier) (err error) {
		o, err = c.origin(ctx, q)
		return err
	})
	return o, failed("look which database this is", err)
}

func (c *Client) origin(ctx context.Context, q outbox.Querier) (Origin, error) {
	s, of, err := origin.LookForTools(ctx, q, c.schema)
	if err != nil {
		return Origin{}, err
	}
	o := Origin{
		DatabaseID: s.DatabaseID, Name: s.Name, Environment: s.Environment, Hidden: s.Hidden,
		Copy: s.Refused && of == "", Refused: of, LastSeen: s.LivedAt,
	}
	if o.Problem, o.Remedy = s.Problem(of); o.Problem != "" {
		o.Problem = "this database may be a copy" + o.Problem
	}
	return o, nil
}

// AdoptOptions say how Adopt takes a database over.
//
// Experimental: a minor version may change it.
type AdoptOptions struct {
	// Environment is written into the database, which then refuses relays of another environment. ""
	// leaves it to the first relay with an environment; with KeepID the environment stays as it was.
	Environment string
	// KeepID makes this database the successor of the original, as after a switch-over by logical
	// replication or a restore in another server: task keys and event ids stay the same. Stop the
	// original and its relays before. Without it the database gets an id of its own.
	KeepID bool
	// Discard deletes the original's tasks and dead letters, and the schedules that are not paused:
	// relays register those of their code again, from now on. The history stays.
	Discard bool
}

// AdoptResult is what became of the original's rows by [Client.Adopt].
//
// Experimental: a minor version may change it.
type AdoptResult struct {
	DatabaseID  string
	Leases      int64 // tasks that the original's relays ran, ready again
	Tasks       int64 // that were discarded
	DeadLetters int64 // that were discarded
	Schedules   int64 // that were discarded
}

const (
	adoptSQL = `/* outbox: adopt this database */
SELECT COALESCE(leases, 0), COALESCE(tasks, 0), COALESCE(dead, 0), COALESCE(schedules, 0), leases IS NULL
  FROM outbox.adopt($1::boolean, $2::boolean, $3)`
	adoptedIDSQL = `/* outbox: the id of this database */
SELECT database_id::text FROM outbox.identity`
	// A row with a later time was written while the server's clock was ahead.
	livingSQL = `/* outbox: whether relays live */
SELECT EXISTS (SELECT 1 FROM outbox.relay
  WHERE alive_until BETWEEN clock_timestamp() AND clock_timestamp() + interval '5 minutes')`
)

// Adopt makes a copy the tasks' own database: it gets an id of its own, unless KeepID says that it
// is the original's successor, and its relays begin within seconds. Tasks that the original's relays
// were running are ready again; these runs count neither as attempts nor as crashes.
//
// A snapshot looks like its original, so it is adopted with another Environment.
//
// Errors are ErrNotCopy; ErrRelaysLive, where this database is no copy and KeepID is not set.
//
// Experimental: a minor version may change it.
func (c *Client) Adopt(ctx context.Context, o AdoptOptions) (a AdoptResult, err error) {
	if o.KeepID && o.Discard {
		return a, invalid("Adopt: KeepID and Discard exclude each other")
	}
	if !origin.ValidEnvironment(o.Environment) {
		return a, invalid("AdoptOptions.Environment: %.200q: use at most %d bytes of printable text",
			o.Environment, origin.MaxEnvironment)
	}
	err = c.inTx(ctx, func(q outbox.Querier) error {
		a, err = c.adopt(ctx, q, o)
		return err
	})
	if errors.Is(err, ErrNotCopy) || errors.Is(err, ErrRelaysLive) {
		return AdoptResult{}, err
	}
	if err != nil {
		return AdoptResult{}, failed("adopt this database", err)
	}
	wake.All()
	return a, nil
}

func (c *Client) adopt(ctx context.Context, q outbox.Querier, o AdoptOptions) (a AdoptResult, err error) {
	was, err := c.origin(ctx, q)
	if err != nil {
		return a, err
	}
	if !was.Copy {
		if o.Environment == "" || o.Environment == was.Environment {
			return a, fmt.Errorf("%w: a snapshot is adopted with another Environment", ErrNotCopy)
		}
		var live bool
		if err := q.QueryRowContext(ctx, c.schema.SQL(livingSQL)).Scan(&live); err != nil {
			return a, err
		}
		if live && !o.KeepID {
			return a, ErrRelaysLive
		}
	}
	var meanwhile bool
	err = q.QueryRowContext(ctx, c.schema.SQL(adoptSQL), o.KeepID, o.Discard, o.Environment).
		Scan(&a.Leases, &a.Tasks, &a.DeadLetters, &a.Schedules, &meanwhile)
	if err == nil && meanwhile {
		return a, fmt.Errorf("%w any more: it was adopted meanwhile", ErrNotCopy)
	}
	if err == nil {
		err = q.QueryRowContext(ctx, c.schema.SQL(adoptedIDSQL)).Scan(&a.DatabaseID)
	}
	if err != nil || c.config.Actor == "" {
		return a, err
	}
	action, target := ActionAdopt, fmt.Sprintf("database %s, which was %s of %q", a.DatabaseID, was.DatabaseID, was.Name)
	if o.Discard {
		action = ActionAdoptDiscard
	}
	_, err = c.In(q).WriteAudit(ctx,
		AuditEntry{Action: action, Target: cutTarget(target), Count: a.Leases + a.Tasks + a.DeadLetters})
	return a, err
}

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
