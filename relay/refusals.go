package relay

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/txoutbox/outbox/internal/access"
	"github.com/txoutbox/outbox/internal/pg"
)

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
