package relay

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"log/slog"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/schema"
)

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
	if pooling := schema.Check(ctx, db, name); errors.Is(pooling, schema.ErrStatementPooling) {
		return pooling
	}
	return err
}
