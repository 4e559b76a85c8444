//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"time"

	"github.com/lib/pq"
)

// rewrite is a way to write the rows of a table into a new file. Each but VACUUM FULL and CLUSTER
// makes new versions of the rows.
type rewrite struct {
	name string
	do   func(ctx context.Context, a *arena, table string) error
}

var rewrites = []rewrite{
	{"VACUUM FULL", rewriteBy(`VACUUM FULL outbox.%[1]s`)},
	{"CLUSTER", rewriteBy(`CLUSTER outbox.%[1]s USING %[1]s_pkey`)},
	{"SET UNLOGGED and back", rewriteBy( // in one transaction, as a crash empties an unlogged table
		`ALTER TABLE outbox.%[1]s SET UNLOGGED; ALTER TABLE outbox.%[1]s SET LOGGED`)},
	{"a column", rewriteBy(`ALTER TABLE outbox.%[1]s ADD COLUMN chaos uuid DEFAULT gen_random_uuid();
		ALTER TABLE outbox.%[1]s DROP COLUMN chaos`)},
	{"pg_repack", repack},
}

// rewriteBy rewrites a table by statements of the superuser.
func rewriteBy(statements string) func(ctx context.Context, a *arena, table string) error {
	return func(ctx context.Context, a *arena, table string) error {
		conn, err := a.db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.ExecContext(ctx, `SET lock_timeout = '5s'`); err != nil {
			return err
		}
		_, err = conn.ExecContext(ctx, fmt.Sprintf(statements, table))
		return err
	}
}

func repack(ctx context.Context, a *arena, table string) error {
	u := a.superuser()
	secret, _ := u.User.Password()
	cmd := exec.CommandContext(ctx, a.repack,
		"--no-order", "--no-kill-backend", "--wait-timeout=5", "--table=outbox."+table)
	cmd.Env = append(os.Environ(), "PGHOST="+u.Hostname(), "PGPORT="+u.Port(),
		"PGUSER="+u.User.Username(), "PGPASSWORD="+secret, "PGDATABASE="+a.database)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// prepareRewrites hides the server's identifier, as some providers do, so that relays know their
// database by the marks in it. It looks whether there is pg_repack.
func prepareRewrites(a *arena) error {
	found, err := a.server().Program("pg_repack")
	if err == nil {
		a.repack = found
	}
	return a.do(`REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC`)
}

// dropRepack removes pg_repack, with what a crash has left of its triggers and logs.
const dropRepack = `DROP EXTENSION IF EXISTS pg_repack CASCADE`

// rewriteTables rewrites all tables of the outbox beside relays, one after the other, each in some
// way: origin first, as relays ask it which database this is. It leaves out a table whose lock is
// not to be had, and one whose way needs a primary key.
func rewriteTables(a *arena, r *rand.Rand) (string, error) {
	var tables []string
	err := a.row(pq.Array(&tables), `SELECT array_agg(relname ORDER BY relname <> 'origin', relname)
		FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'`)
	if err != nil || !a.rewriting.CompareAndSwap(false, true) {
		return "", nil
	}
	others := tables[1:]
	r.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	a.aside("rewrite", func() (string, error) {
		defer a.rewriting.Store(false)
		return rewriteEach(a, r, tables)
	})
	return "", nil
}

func rewriteEach(a *arena, r *rand.Rand, tables []string) (what string, err error) {
	ways := rewrites
	if a.repack == "" {
		ways = ways[:len(ways)-1]
	} else if err := a.do(dropRepack + `; CREATE EXTENSION pg_repack`); err != nil {
		return "", err
	}
	done := 0
	for _, table := range tables {
		if a.over.Load() {
			break
		}
		if err := a.do(`SELECT 1`); err != nil { // it waits until the server has started
			return "", err
		}
		way := ways[r.IntN(len(ways))]
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		failure := way.do(ctx, a, table)
		cancel()
		if failure == nil {
			done++
			what += fmt.Sprintf(" %s (%s)", table, way.name)
		} else {
			err = failure
		}
	}
	if a.repack != "" {
		if err := a.do(dropRepack); err != nil {
			return "", err
		}
	}
	if done == 0 {
		return "", err
	}
	return fmt.Sprintf("%d of %d tables:%s", done, len(tables), what), nil
}
