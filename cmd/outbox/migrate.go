package main

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/schema"
)

// migration is a version of the schema in JSON.
type migration struct {
	Version   int    `json:"version"`
	Name      string `json:"name"`
	AppliedAt stamp  `json:"applied_at"`
}

func (a *app) migrateCommand() *cobra.Command {
	c := group(&cobra.Command{Use: "migrate", Short: "the schema: up, status, print", Example: "  outbox migrate up"})
	c.AddCommand(&cobra.Command{
		Use: "up", Short: "create the schema, or bring it to this command's version", Args: cobra.NoArgs, Example: "  outbox migrate up",
		Long: `Applies the migrations that are not applied yet, each in a transaction of its own. Any number of processes may do it at once. After it, run outbox roles apply
again if you use the roles. --timeout does not bound it.`,
		RunE: func(c *cobra.Command, _ []string) error { return a.migrateUp(c.Context()) },
	}, &cobra.Command{
		Use: "status", Short: "list the migrations that are applied, and those that are pending", Args: cobra.NoArgs, Example: "  outbox migrate status -json",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.open(); err != nil {
				return err
			}
			all, err := a.migrations(c.Context())
			if err != nil {
				return err
			}
			return a.out.print(page{"schema": a.schema, "version": versionOf(all), "newest": schema.Version(), "migrations": all}, func() error {
				t := newTable(">VERSION", "NAME", "APPLIED")
				for _, m := range all {
					applied := "pending"
					if !m.AppliedAt.IsZero() {
						applied = local(m.AppliedAt.Time)
					}
					t.add(m.Version, m.Name, applied)
				}
				return a.out.table(t)
			})
		},
	}, &cobra.Command{
		Use: "print", Short: "print all migrations as one script for psql", Args: cobra.NoArgs, Example: "  outbox migrate print | psql -v ON_ERROR_STOP=1 -1",
		Long: "Prints the SQL of all migrations for --schema, to be applied in one transaction. It needs no database.",
		RunE: func(c *cobra.Command, _ []string) error { return a.script(schema.SQL) },
	})
	return c
}

// script prints SQL.
func (a *app) script(of func(name string) (string, error)) error {
	text, err := of(a.schema)
	if err != nil {
		return usage("%w", err)
	}
	return a.out.print(page{"sql": text}, func() error {
		_, err := io.WriteString(a.out.w, strings.TrimRight(text, "\n")+"\n")
		return err
	})
}

const migrationsSQL = `/* outbox: migrations that were applied */
SELECT version, applied_at FROM outbox.migration ORDER BY version`

// migrations are all versions that this command or the schema knows.
func (a *app) migrations(ctx context.Context) (all []migration, err error) {
	files, err := fs.ReadDir(schema.Files, ".")
	if err != nil {
		return nil, err
	}
	for i, f := range files {
		name := strings.TrimSuffix(f.Name(), ".sql")
		_, name, _ = strings.Cut(name, "_")
		all = append(all, migration{Version: schema.Version() - len(files) + i + 1, Name: name})
	}
	err = a.look(ctx, func(ctx context.Context, q *sql.Tx) error {
		check := schema.Check(ctx, q, a.schema)
		if check != nil && !errors.Is(check, schema.ErrNotMigrated) && !errors.Is(check, schema.ErrNewer) {
			return check
		}
		var there bool
		if err := q.QueryRowContext(ctx, `SELECT to_regclass($1) IS NOT NULL`, `"`+a.schema+`".migration`).Scan(&there); err != nil || !there {
			return err
		}
		rows, err := q.QueryContext(ctx, strings.ReplaceAll(migrationsSQL, "outbox.migration", `"`+a.schema+`".migration`))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var version int
			var at time.Time
			if err := rows.Scan(&version, &at); err != nil {
				return err
			}
			for all[len(all)-1].Version < version {
				all = append(all, migration{Version: all[len(all)-1].Version + 1, Name: "of a newer command"})
			}
			if version < all[0].Version {
				return check // from before the baseline
			}
			all[version-all[0].Version].AppliedAt = stamp{at}
		}
		return rows.Err()
	})
	return all, err
}

// versionOf is the newest version that was applied.
func versionOf(all []migration) (version int) {
	for _, m := range all {
		if !m.AppliedAt.IsZero() {
			version = m.Version
		}
	}
	return version
}

func (a *app) migrateUp(ctx context.Context) error {
	if err := a.open(); err != nil {
		return err
	}
	before, err := a.migrations(ctx)
	if err != nil {
		return err
	}
	if err := schema.Migrate(ctx, a.db, schema.Schema(a.schema)); err != nil {
		return err
	}
	from, to := versionOf(before), schema.Version()
	if from < to { // the table of the audit may be one of those that are new
		missing := slices.IndexFunc(before, func(m migration) bool { return m.Version > from })
		e := admin.Entry{Action: "migrate", Target: "schema version " + strconv.Itoa(from) + " to " + strconv.Itoa(to), Count: int64(len(before) - missing)}
		if err := a.note(ctx, e); err != nil {
			return err
		}
	}
	return a.out.print(page{"schema": a.schema, "from": from, "to": to}, func() error {
		if from == to {
			return a.out.say("schema %s: at version %d already", a.schema, to)
		}
		return a.out.say("schema %s: migrated from version %d to %d", a.schema, from, to)
	})
}

func (a *app) rolesCommand() *cobra.Command {
	var yes bool
	c := group(&cobra.Command{Use: "roles", Short: "roles for enqueuers, workers, viewers and operators: print, apply", Example: "  outbox roles apply"})
	apply := &cobra.Command{
		Use: "apply", Short: "create the roles and give each its rights", Args: cobra.NoArgs, Example: "  outbox roles apply -yes",
		Long: `Creates the roles <schema>_owner, _enqueuer, _worker, _viewer and _operator, which cannot log in, and gives each what it needs. The schema and its tables become
the owner's, and PUBLIC may not execute its functions any more. Do it again after each migration. --timeout does not bound it.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.connect(c.Context()); err != nil {
				return err
			}
			question := "Make " + a.schema + "_owner the owner of the schema " + a.schema + ", and take the rights on its functions from PUBLIC?"
			if err := a.confirm(c.Context(), yes, question); err != nil {
				return err
			}
			if err := a.grantRoles(c.Context()); err != nil {
				return err
			}
			return a.out.print(page{"schema": a.schema, "applied": true}, func() error { return a.out.say("schema %s: roles applied", a.schema) })
		},
	}
	yesFlag(apply, &yes)
	c.AddCommand(apply, &cobra.Command{
		Use: "print", Short: "print the same as a script for psql", Args: cobra.NoArgs, Example: "  outbox roles print | psql -v ON_ERROR_STOP=1 -1",
		RunE: func(c *cobra.Command, _ []string) error { return a.script(schema.RolesSQL) },
	})
	return c
}

// grantRoles notes before it that it begins, and after it what came of it.
func (a *app) grantRoles(ctx context.Context) error {
	e := admin.Entry{Action: "grant_roles", Target: "schema " + a.schema}
	if err := a.note(ctx, e); err != nil {
		return err
	}
	err := schema.GrantRoles(ctx, a.db, schema.Schema(a.schema))
	if e.Action = "grant_roles: done"; err != nil {
		e.Action = "grant_roles: failed"
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second) // also when ctrl-C ended it
	defer cancel()
	return errors.Join(err, a.note(late, e))
}
