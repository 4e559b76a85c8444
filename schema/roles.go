package schema

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox/internal/pgerr"
)

//go:embed roles.sql
var rolesScript string

// RolesSQL returns the script that makes the roles and gives them their rights, as [GrantRoles]
// does. It is to be applied in one transaction after the migrations: psql -v ON_ERROR_STOP=1 -1 -f.
// It may be applied again, and should be after each new migration. The schema's name has at most 54
// bytes, as those of the roles begin with it. The error is that of an invalid name.
func RolesSQL(opts ...SchemaOption) (string, error) {
	name, err := nameOf(opts)
	if err == nil {
		err = checkRoles(name)
	}
	if err != nil {
		return "", err
	}
	return rename(rolesScript, name), nil
}

// GrantRoles creates five roles that cannot log in, and gives each what it needs; login roles get
// their rights by being members of these. For the schema "outbox" they are outbox_owner,
// outbox_enqueuer, outbox_worker, outbox_viewer and outbox_operator.
// https://github.com/txoutbox/outbox/blob/main/docs/security.md says what each may do. An app that
// does not call it works as before, with what its roles have.
//
// The owner gets the schema and its tables, views and functions. The role that owned them, and the
// one that calls this, become its members, so both can do what they could. PUBLIC loses EXECUTE on
// the functions: roles that were given rights by hand need to be members of one of these instead,
// and keep what else they had.
//
// Roles are the server's: those that exist stay as they are, and databases with a schema of the
// same name share them. The schema must be at [Version]. If it is newer, and this code may run beside
// it, GrantRoles changes nothing: the newer code knows the rights. Call it again after each [Migrate]
// that applied a migration: it sets the groups' rights to those of this version. It waits for a
// Migrate and for another GrantRoles. Any number of processes, in any databases, may call it at once.
//
// The first call changes owners, and waits for all transactions that use the tables. So best call
// it with the first Migrate. The [LockTimeout] is 500 ms unless another is given: PostgreSQL then
// does not end a transaction of the app because of it.
//
// The role that calls it owns the outbox, or is a member of its owner. It needs CREATEROLE, unless
// the roles exist and it is a member of <schema>_owner. To pass on the schema it needs CREATE on
// the database, unless it is a superuser. Errors, tries and the end of ctx are as with Migrate, and
// ErrNotMigrated; after an error nothing is changed.
func GrantRoles(ctx context.Context, db *sql.DB, opts ...Option) error {
	s, err := newSettings(append([]Option{LockTimeout(grantLockTimeout)}, opts...))
	if err != nil {
		return err
	}
	script, err := RolesSQL(Schema(s.name))
	if err != nil {
		return err
	}
	if db == nil {
		return errors.New("schema: GrantRoles: the *sql.DB is nil")
	}
	return s.repeat(ctx, "grant roles in", func(ctx context.Context) (finished bool, err error) {
		return true, explainBegin(ctx, db, s.grant(ctx, db, script))
	})
}

// Shorter than deadlock_timeout, which is 1 s by default: of a deadlock with a transaction of the
// app this is the one that gives way.
const grantLockTimeout = 500 * time.Millisecond

const granting = "to own the outbox or be a member of its owner, CREATEROLE unless the roles exist, and CREATE on the database"

func (s *settings) grant(ctx context.Context, db *sql.DB, script string) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", pgerr.WithoutDSN(err))
	}
	defer func() { _ = conn.Close() }() // back to the pool
	newer := false
	check := func(tx *sql.Tx) error {
		state, err := Inspect(ctx, tx, Schema(s.name))
		newer = state.Version > Version() // its own code knows the rights
		return err
	}
	if err := s.inTx(ctx, conn, true, check); err != nil || newer {
		return err
	}
	return s.inTx(ctx, conn, false, func(tx *sql.Tx) error {
		// Before it is read: the script alters the table.
		if _, err := tx.ExecContext(ctx, "LOCK TABLE "+quote(s.name)+".migration IN EXCLUSIVE MODE"); err != nil {
			return needs(granting, err)
		}
		if err := check(tx); err != nil || newer {
			return err
		}
		_, err := tx.ExecContext(ctx, script)
		return needs(granting, err)
	})
}
