package relay

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox/internal/access"
	"github.com/txoutbox/outbox/internal/origin"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/writable"
	"github.com/txoutbox/outbox/schema"
)

const (
	copyRecheck = time.Second // whether a copy was adopted
	copyLogged  = time.Minute // at most once in
)

// check is the start of a run: it refuses a database that this code cannot work with.
type check struct {
	db          *sql.DB
	store       *store.Store
	environment string
	limits      []store.Limit
	once        bool // RunOnce
	waits       func()
	log         *slog.Logger
	outage      plan.Outage
	health      *health
	refusals    refusals
}

// run waits while the database cannot be reached, and while it is a copy, unless it is RunOnce's.
// It returns which database it is.
func (c *check) run(ctx context.Context) (origin.State, error) {
	var copied, logged time.Time // since when it is a copy; when the log was last told
	for {
		began := time.Now()
		noted, state, err := c.try(ctx)
		err = c.refusals.explain(ctx, explainBegin(ctx, c.db, string(c.store.Schema), err))
		now, wait := time.Now(), copyRecheck
		switch {
		case ctx.Err() != nil:
			return noted, nil
		case err == nil:
			c.answered(began, now)
			if !copied.IsZero() {
				c.log.Info("outbox: the database was adopted; the relay begins", "after", now.Sub(copied).Round(time.Second))
				c.health.setCopied(nil)
			}
			logVersions(c.log, state)
			return noted, nil
		case c.once, errors.Is(err, pg.ErrDriver), errors.Is(err, ErrPoolClosed),
			errors.Is(err, schema.ErrNotMigrated), errors.Is(err, schema.ErrNewer),
			errors.Is(err, schema.ErrUnsupportedServer), errors.Is(err, schema.ErrUnsupportedEncoding),
			errors.Is(err, schema.ErrStatementPooling), errors.Is(err, schema.ErrReadOnly),
			errors.Is(err, schema.ErrRowSecurity):
			return noted, err
		case errors.Is(err, origin.ErrCopy):
			c.answered(began, now)
			c.health.setCopied(err)
			if copied.IsZero() {
				copied = now
			}
			if now.Sub(logged) >= copyLogged {
				logged = now
				c.log.Error("outbox: the relay runs nothing, as this database may be a copy", "error", err)
			}
		default:
			if f := failureOf(err); c.outage.Fail(began, now, f) {
				c.health.outageBegan(plan.OutageBegan{Err: err, Lasting: f.Lasting, At: now})
			}
			wait = c.outage.Wait(now)
		}
		c.waits()
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return noted, nil
		}
	}
}

// answered notes that PostgreSQL has answered.
func (c *check) answered(began, now time.Time) {
	if lasted, ends := c.outage.OK(began, now); ends {
		c.health.outageEnded(lasted, now)
	}
}

func (c *check) try(ctx context.Context) (noted origin.State, state schema.State, err error) {
	bounded, cancel := context.WithTimeout(ctx, pg.StatementTimeout)
	defer cancel()
	if err := c.store.Conns.CheckDriver(bounded); err != nil {
		return noted, state, err
	}
	var copied error // committed, as it notes the relay's environment
	err = c.store.Conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		if state, err = schema.Inspect(ctx, tx, schema.Schema(string(c.store.Schema))); err != nil {
			return err
		}
		if err := writable.Check(ctx, tx); err != nil {
			return err
		}
		if err := schema.CheckRowSecurity(ctx, tx, schema.Schema(string(c.store.Schema))); err != nil {
			return err
		}
		noted, err = origin.Note(ctx, tx, c.store.Schema, c.environment)
		if errors.Is(err, origin.ErrCopy) {
			copied = err
			return nil
		}
		if err != nil {
			return err
		}
		if noted.Environment != c.environment && c.environment != "" {
			c.log.Warn("outbox: the environment is not noted, as the role lacks INSERT and UPDATE on the table origin",
				"schema", c.store.Schema)
		}
		c.store.Identity.Set(noted.DatabaseID)
		return c.store.StoreLimits(ctx, tx, c.limits, false)
	})
	return noted, state, cmp.Or(err, copied)
}

// logVersions says that the schema or the server is newer than this code.
func logVersions(log *slog.Logger, state schema.State) {
	if known := schema.Version(); state.Version > known {
		log.Info("outbox: the schema is newer than this code, which may run beside it",
			"schema_version", state.Version, "code_version", known, "oldest_code_version", state.OldestVersion)
	}
	if state.UntestedServer {
		log.Warn("outbox: this PostgreSQL is newer than the versions that the outbox was tested with",
			"server_version", state.Server)
	}
}

// explainBegin is schema.ErrStatementPooling where that is why no transaction begins.
func explainBegin(ctx context.Context, db *sql.DB, name string, err error) error {
	if !errors.Is(err, driver.ErrBadConn) && pgerr.Code(err) != "08P01" {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pg.StatementTimeout)
	defer cancel()
	if pooling := schema.Check(ctx, db, schema.Schema(name)); errors.Is(pooling, schema.ErrStatementPooling) {
		return pooling
	}
	return err
}

// explainTimeout is how long a relay looks for the reason of an error.
const explainTimeout = 2 * time.Second

// refusals name what is missing where PostgreSQL refuses a statement or a login of the relay.
type refusals struct {
	schema string
	conns  *pg.Pool
	health *health
}

// explain adds the reason to an error of a statement of the relay's, if it finds one.
func (r refusals) explain(ctx context.Context, err error) error {
	if !access.Needed(err) {
		login := r.conns.Login()
		return access.ExplainLogin(login.Role, login.Database, err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), explainTimeout)
	defer cancel()
	_ = r.conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) (failed error) {
		err, failed = access.Explain(ctx, tx, r.schema, err)
		return failed
	})
	return err
}

// tell tells Health and the log of a part of the relay's work that PostgreSQL refuses, and reports
// whether it found the reason. The error nil says that the part works again.
func (r refusals) tell(ctx context.Context, part string, err error) (named bool) {
	return r.told(part, r.explain(ctx, err))
}

// tellOn is tell on a connection that is free. It also returns the error with its reason.
func (r refusals) tellOn(ctx context.Context, on *pg.Dedicated, part string, err error) (explained error, named bool) {
	if access.Needed(err) {
		ctx, cancel := context.WithTimeout(ctx, explainTimeout)
		defer cancel()
		_ = on.Do(ctx, func(ctx context.Context, conn pg.Querier) (failed error) {
			err, failed = access.Explain(ctx, conn, r.schema, err)
			return failed
		})
	}
	return err, r.told(part, err)
}

func (r refusals) told(part string, err error) (named bool) {
	if named = isNamed(err); named || err == nil {
		r.health.partRefused(part, err)
	}
	return named
}

// isNamed reports whether an error names what is missing.
func isNamed(err error) bool { return errors.Is(err, access.ErrRefused) }
