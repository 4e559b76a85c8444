// Package inbox lets a consumer of events have the effect of each once, though brokers and webhooks
// deliver some of them again.
//
//	err := outbox.InTx(ctx, db, func(tx *sql.Tx) error {
//		first, err := inbox.Once(ctx, tx, event.Source, event.ID)
//		if err != nil || !first {
//			return err
//		}
//		return createInvoice(ctx, tx, event)
//	})
//	// acknowledge the event if err is nil
//
// It needs the schema of package schema in the consumer's database, but no relay. The events may be
// of any producer: package forward is not needed.
package inbox

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/schemaname"
	"github.com/txoutbox/outbox/internal/txcheck"
)

const (
	maxBytes         = 1024
	defaultRetention = 30 * 24 * time.Hour
	maxRetention     = 100 * 365 * 24 * time.Hour
)

type config struct {
	schema    string
	retention time.Duration
}

// Option changes a call of [Once]. A nil one is refused with outbox.ErrInvalidOption.
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

// SchemaOption is the option [Schema]: an [Option], and the only one of [Purge].
type SchemaOption struct{ name string }

// Schema names the PostgreSQL schema of the outbox. Without it that is "outbox". Names are as of
// schema.Schema; others, and "", are outbox.ErrInvalidOption.
func Schema(name string) SchemaOption { return SchemaOption{name} }

func (o SchemaOption) apply(c *config) { c.schema = o.name }

// Retention is how long the event is remembered: longer than a producer or a broker may still
// deliver it again, as after a redrive of dead letters. The default is 30 days, the most 100 years;
// a d <= 0 is refused.
func Retention(d time.Duration) Option { return option(func(c *config) { c.retention = d }) }

func newConfig[O Option](opts []O) (config, error) {
	c := config{schema: schemaname.Default, retention: defaultRetention}
	for _, o := range opts {
		if any(o) == nil {
			return c, fmt.Errorf("%w: inbox: an Option is nil", outbox.ErrInvalidOption)
		}
		o.apply(&c)
	}
	if !schemaname.Valid(c.schema) {
		return c, fmt.Errorf("%w: inbox: Schema(%q): %s", outbox.ErrInvalidOption, c.schema, schemaname.Rule)
	}
	if c.retention <= 0 || c.retention > maxRetention {
		return c, fmt.Errorf("%w: inbox: Retention(%v): must be positive, and at most 100 years", outbox.ErrInvalidOption,
			c.retention)
	}
	return c, nil
}

const onceSQL = `/* inbox: once */
INSERT INTO "%s".inbox (source, event_id, keep_until)
VALUES ($1, $2, now() + $3::bigint * interval '1 microsecond')
ON CONFLICT DO NOTHING`

// Once notes the event in tx and reports whether it is new. It is new until a transaction that
// noted it commits, so the caller's writes in the same transaction happen once.
//
// Consumers that share a schema share its inbox. Give each a source of its own, as in
// "billing "+source.
//
// While another transaction has noted the event and not ended, Once waits for it: after its commit
// the answer is false, after its rollback true. Above READ COMMITTED the answer may be a
// serialization failure (40001) in place of false: begin again.
//
// source and id are those of CloudEvents: 1 to 1,024 bytes of UTF-8 without NUL each. Others are
// refused with outbox.ErrInvalidOption, and a tx that is no open transaction with
// outbox.ErrNoTransaction, before anything is written. Any other error is tx's own, wrapped.
func Once(ctx context.Context, tx outbox.Querier, source, id string, opts ...Option) (first bool, err error) {
	if err := txcheck.Given(tx); err != nil {
		return false, err
	}
	c, err := newConfig(opts)
	if err != nil {
		return false, err
	}
	for _, v := range []struct{ name, text string }{{"source", source}, {"id", id}} {
		if len(v.text) == 0 || len(v.text) > maxBytes || !utf8.ValidString(v.text) ||
			strings.IndexByte(v.text, 0) >= 0 {
			return false, fmt.Errorf("%w: inbox: the %s %.40q has %d bytes: must be 1 to %d of UTF-8 without NUL",
				outbox.ErrInvalidOption, v.name, v.text, len(v.text), maxBytes)
		}
	}
	if err := txcheck.Begun(ctx, tx); err != nil {
		return false, err
	}
	result, err := tx.ExecContext(ctx, fmt.Sprintf(onceSQL, c.schema), source, id, c.retention.Microseconds())
	if err != nil {
		return false, fmt.Errorf("inbox: once: %w", err)
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

const purgeSQL = `/* inbox: purge */
WITH d AS MATERIALIZED (
  SELECT source, event_id FROM "%[1]s".inbox WHERE keep_until < now()
   ORDER BY keep_until LIMIT $1 FOR UPDATE SKIP LOCKED)
DELETE FROM "%[1]s".inbox i USING d WHERE i.source = d.source AND i.event_id = d.event_id`

const purgeRows = 1000

// Purge forgets the events whose time is over, 1,000 in a statement, each committed by itself, and
// returns how many. Relays of the same schema do the same every two minutes; only a consumer
// without a relay needs it, say once a day. When ctx ends it returns an error, with the number so
// far.
func Purge(ctx context.Context, db *sql.DB, opts ...SchemaOption) (forgotten int64, err error) {
	c, err := newConfig(opts)
	if err != nil {
		return 0, err
	}
	for {
		n, err := purge(ctx, db, fmt.Sprintf(purgeSQL, c.schema))
		if err != nil {
			return forgotten, fmt.Errorf("inbox: purge: %w", err)
		}
		if forgotten += n; n < purgeRows {
			return forgotten, nil
		}
	}
}

func purge(ctx context.Context, db *sql.DB, query string) (n int64, err error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	result, err := tx.ExecContext(ctx, query, purgeRows)
	if err != nil {
		return 0, err
	}
	if n, err = result.RowsAffected(); err != nil {
		return 0, err
	}
	return n, tx.Commit()
}
