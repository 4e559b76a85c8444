package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/schema"
)

func (a *app) migrateCommand() *cobra.Command {
	return group(&cobra.Command{
		Use: "migrate", Short: "the schema: up, status, print", Example: "  outbox migrate up",
	}, &cobra.Command{
		Use: "up", Short: "create the schema, or bring it to this command's version", Args: cobra.NoArgs,
		Example: "  outbox migrate up",
		Long: `Applies the migrations that are not applied yet, and then the functions, views and triggers of this
command, in one transaction. Any number of processes may do it at once. After it, run outbox roles
apply again if you use the roles. --timeout does not bound it.`,
		RunE: func(c *cobra.Command, _ []string) error { return a.migrateUp(c.Context()) },
	}, &cobra.Command{
		Use: "status", Short: "list applied and pending migrations", Args: cobra.NoArgs,
		Example: "  outbox migrate status -json",
		RunE:    func(c *cobra.Command, _ []string) error { return a.migrateStatus(c.Context()) },
	}, &cobra.Command{
		Use: "print", Short: "print the schema as one script for psql", Args: cobra.NoArgs,
		Example: "  outbox migrate print | psql -v ON_ERROR_STOP=1 -1",
		Long:    "Prints the SQL of the schema named by --schema, to be applied in one transaction. It needs no database.",
		RunE:    func(c *cobra.Command, _ []string) error { return a.printScript(schema.SQL) },
	})
}

// printScript prints SQL for the schema.
func (a *app) printScript(of func(...schema.SchemaOption) (string, error)) error {
	text, err := of(schema.Schema(a.schema))
	if err != nil {
		return usage("%w", err)
	}
	return a.out.print(object{{"sql", text}}, strings.Split(strings.TrimRight(text, "\n"), "\n")...)
}

// applied reads when each version was applied. A schema that is not there has none.
func (a *app) applied(ctx context.Context) (at map[int]time.Time, newest int, err error) {
	if err := a.open(); err != nil {
		return nil, 0, err
	}
	at = map[int]time.Time{}
	err = a.look(ctx, func(ctx context.Context, q *sql.Tx) error {
		state, check := schema.Inspect(ctx, q, schema.Schema(a.schema))
		switch {
		case check != nil && !errors.Is(check, schema.ErrNotMigrated) && !errors.Is(check, schema.ErrNewer):
			return check
		case state.Version == 0: // the table may be missing
			return nil
		}
		rows, err := q.QueryContext(ctx, `/* outbox: migrations that were applied */
SELECT version, applied_at FROM "`+a.schema+`".migration ORDER BY version`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var applied time.Time
			if err := rows.Scan(&newest, &applied); err != nil {
				return err
			}
			at[newest] = applied
		}
		return rows.Err()
	})
	return at, newest, err
}

// fileNames are those of the migrations of this command, in order.
var fileNames = sync.OnceValue(func() []string {
	names, _ := fs.Glob(schema.FS(), "*.sql") // the pattern is valid
	return names
})

func (a *app) migrateStatus(ctx context.Context) error {
	at, newest, err := a.applied(ctx)
	if err != nil {
		return err
	}
	t := newTable(">VERSION NAME APPLIED")
	for v := 1; v <= max(newest, schema.Version()); v++ {
		name := "of a newer command"
		if v <= len(fileNames()) {
			_, name, _ = strings.Cut(strings.TrimSuffix(fileNames()[v-1], ".sql"), "_")
		}
		applied := cmp.Or(text(at[v]), "pending")
		t.add(object{{"version", v}, {"name", name}, {"applied_at", at[v]}}, v, name, applied)
	}
	return a.out.print(object{
		{"schema", a.schema}, {"version", newest}, {"newest", schema.Version()}, {"migrations", t.json},
	}, t.lines()...)
}

func (a *app) migrateUp(ctx context.Context) error {
	before, from, err := a.applied(ctx)
	if err != nil {
		return err
	}
	if err := schema.Migrate(ctx, a.db, schema.Schema(a.schema)); err != nil {
		return err
	}
	to := max(from, schema.Version())
	said := fmt.Sprintf("schema %s: at version %d already", a.schema, to)
	if from > schema.Version() {
		said += fmt.Sprintf(", newer than this command's %d, which may run beside it", schema.Version())
	}
	if from < to { // the table of the audit may be one of those that are new
		said = fmt.Sprintf("schema %s: migrated from version %d to %d", a.schema, from, to)
		e := admin.AuditEntry{
			Action: admin.ActionMigrate, Target: fmt.Sprintf("schema version %d to %d", from, to),
			Count: int64(len(fileNames()) - len(before)),
		}
		err := a.change(ctx, func(ctx context.Context, _ *sql.Tx, c *admin.Client) error {
			_, err := c.WriteAudit(ctx, e)
			return err
		})
		if err != nil {
			return err
		}
	}
	return a.out.print(object{{"schema", a.schema}, {"from", from}, {"to", to}}, said)
}

func (a *app) rolesCommand() *cobra.Command {
	return group(&cobra.Command{
		Use: "roles", Short: "roles for enqueuers, workers, viewers and operators: print, apply",
		Example: "  outbox roles apply",
	}, a.asks(&cobra.Command{
		Use: "apply", Short: "create the roles and give each its rights", Args: cobra.NoArgs,
		Example: "  outbox roles apply -yes",
		Long: `Creates the roles <schema>_owner, _enqueuer, _worker, _viewer and _operator, which cannot log in, and
gives each its rights. The owner gets the schema and its tables, and PUBLIC loses the right to execute
its functions. Repeat it after each migration. --timeout does not bound it.`,
		RunE: func(c *cobra.Command, _ []string) error {
			question := "Make " + a.schema + "_owner the owner of the schema " + a.schema +
				", and take the rights on its functions from PUBLIC?"
			if err := a.confirm(c.Context(), question); err != nil {
				return err
			}
			for _, do := range []func(context.Context) error{a.connect, a.knowsRights, a.grantRoles} {
				if err := do(c.Context()); err != nil {
					return err
				}
			}
			return a.out.print(object{{"schema", a.schema}, {"applied", true}}, "schema "+a.schema+": roles applied")
		},
	}), &cobra.Command{
		Use: "print", Short: "print the same as a script for psql", Args: cobra.NoArgs,
		Example: "  outbox roles print | psql -v ON_ERROR_STOP=1 -1",
		RunE:    func(c *cobra.Command, _ []string) error { return a.printScript(schema.RolesSQL) },
	})
}

// grantRoles gives the roles their rights, with an entry in the audit log before it and one after it.
func (a *app) grantRoles(ctx context.Context) error {
	note := func(ctx context.Context, action admin.Action) error {
		return outbox.InTx(ctx, a.db, func(tx *sql.Tx) error {
			_, err := a.client.In(tx).WriteAudit(ctx, admin.AuditEntry{Action: action, Target: "schema " + a.schema})
			return err
		})
	}
	if err := note(ctx, admin.ActionGrantRoles); err != nil {
		return err
	}
	err, done := schema.GrantRoles(ctx, a.db, schema.Schema(a.schema)), admin.ActionGrantRoles+": done"
	if err != nil {
		done = admin.ActionGrantRoles + ": failed"
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second) // ctx may have ended it
	defer cancel()
	return errors.Join(err, note(ctx, done))
}

// knowsRights refuses a schema that is newer than this command: it does not know all rights.
func (a *app) knowsRights(ctx context.Context) error {
	return a.look(ctx, func(ctx context.Context, tx *sql.Tx) error {
		state, err := schema.Inspect(ctx, tx, schema.Schema(a.schema))
		if err == nil && state.Version > schema.Version() {
			err = fmt.Errorf("the schema %s is at version %d, and this command knows the rights of version %d: "+
				"install the command of that version",
				a.schema, state.Version, schema.Version())
		}
		return err
	})
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the versions of this command and of its schema", Args: cobra.NoArgs,
		Example: "  outbox version -json",
		RunE: func(c *cobra.Command, _ []string) error {
			version := "unknown"
			if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
				version = info.Main.Version
			}
			return a.out.print(object{{"version", version}, {"schema_version", schema.Version()}, {"go", runtime.Version()}},
				fmt.Sprintf("outbox %s, schema version %d, %s", version, schema.Version(), runtime.Version()))
		},
	}
}
