//go:build unix

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/txoutbox/outbox"
)

// poisons are the ways in which a handler ends its process, or its connection. None of them can be
// recovered.
var poisons = []string{"exit", "stack", "memory", "backend"}

// poison notes its start in a file, which outlives the process, and ends it.
func (h *hands) poison(ctx context.Context, tx *sql.Tx, task *outbox.Task[work]) error {
	f, err := os.OpenFile(filepath.Join(h.Dir, "starts"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "%s %d %d %s\n", task.Payload.K, task.Attempt, time.Now().UnixNano(), task.Payload.How); err != nil {
		return err
	}
	switch task.Payload.How {
	case "exit":
		os.Exit(3)
	case "stack":
		debug.SetMaxStack(1 << 20)
		fmt.Println(deeper(1))
	case "memory":
		limit := syscall.Rlimit{Cur: 1, Max: 1} // no address space more than there is
		if err := syscall.Setrlimit(syscall.RLIMIT_AS, &limit); err != nil {
			return err
		}
		for all := [][]byte{}; ; {
			all = append(all, make([]byte, 64<<20))
			all[len(all)-1][0] = 1
		}
	default:
		_, err := tx.ExecContext(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
		return err
	}
	return nil
}

func deeper(n int) int {
	if n < 0 {
		return 0 // after more calls than any stack has room for
	}
	return deeper(n+1) + n
}

// commits are the ways in which a handler ends its claim's transaction itself, with what it wrote.
// It fails then, and is a dead letter at once.
var commits = []string{"tx.Commit", "COMMIT", "COMMIT; BEGIN"}

func (h *hands) commit(ctx context.Context, tx *sql.Tx, task *outbox.Task[work]) error {
	if task.Payload.How == "tx.Commit" {
		return errors.Join(errAsked, tx.Commit())
	}
	_, err := tx.ExecContext(ctx, task.Payload.How)
	return errors.Join(errAsked, err)
}

// misbehaviors are the ways in which a handler misbehaves. Whatever they wrote is gone afterwards,
// and they are dead letters in the end.
var misbehaviors = []string{"panic", "panic(nil)", "goexit", "error", "no savepoint", "hidden", "rows", "rows and error", "deferred", "roll back", "roll back in SQL", "endless", "text"}

func (h *hands) misbehave(ctx context.Context, tx *sql.Tx, task *outbox.Task[work]) error {
	if err := h.write(ctx, tx, task); err != nil {
		return err
	}
	switch task.Payload.How {
	case "panic":
		panic("chaos: the handler panics")
	case "panic(nil)":
		panic(nil)
	case "no savepoint":
		_, err := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT another`)
		return err
	case "goexit":
		runtime.Goexit()
	case "hidden":
		_, _ = tx.ExecContext(ctx, `SELECT 1/0`)
		return nil
	case "rows", "rows and error":
		rows, err := tx.QueryContext(ctx, `SELECT repeat('x', 100) FROM generate_series(1, 10000)`)
		if err != nil {
			return err
		}
		rows.Next() // and is left open
		if task.Payload.How == "rows" {
			return nil
		}
	case "deferred":
		_, err := tx.ExecContext(ctx, `INSERT INTO deferred VALUES (-1)`)
		return err
	case "roll back":
		return errors.Join(errAsked, tx.Rollback())
	case "roll back in SQL":
		_, err := tx.ExecContext(ctx, `ROLLBACK`)
		return errors.Join(errAsked, err)
	case "endless":
		_, err := tx.ExecContext(ctx, `SELECT pg_sleep(60)`)
		return err
	case "text":
		return errors.New("chaos: \x00 \xff " + string(make([]byte, 1<<20)))
	}
	return errAsked
}
