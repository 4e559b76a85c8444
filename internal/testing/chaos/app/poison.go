//go:build unix

package app

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/txoutbox/outbox"
)

// Poisons are the ways in which a handler ends its process, or its backend. It cannot recover from
// any of them.
var Poisons = []string{"exit", "stack", "memory", PoisonBackend}

// PoisonBackend ends the backend of the handler's connection.
const PoisonBackend = "backend"

// poison records its start and ends its process.
func poison(dir string) func(context.Context, *sql.Tx, *outbox.Task[Payload]) error {
	return func(ctx context.Context, tx *sql.Tx, task *outbox.Task[Payload]) error {
		if err := record(dir, startsFile, false, task.Payload.K, task.Payload.How, time.Now().UnixNano()); err != nil {
			return err
		}
		switch task.Payload.How {
		case "exit":
			os.Exit(3)
		case "stack":
			debug.SetMaxStack(1 << 20)
			fmt.Println(deeper(1))
		case "memory":
			limit := syscall.Rlimit{Cur: 1, Max: 1} // no more address space than there is
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
}

func deeper(n int) int {
	if n < 0 {
		return 0 // after more calls than any stack has room for
	}
	return deeper(n+1) + n
}
