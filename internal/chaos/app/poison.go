//go:build unix

package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/txoutbox/outbox"
)

// Poisons are the ways in which a handler ends its process, or its backend. It cannot recover from
// any of them.
var Poisons = []string{"exit", "stack", "memory", PoisonBackend}

// PoisonBackend ends the backend of the handler's connection.
const PoisonBackend = "backend"

// poison writes its start to a file, which outlives the process, and ends it.
func poison(dir string) func(context.Context, *sql.Tx, *outbox.Task[Payload]) error {
	return func(ctx context.Context, tx *sql.Tx, task *outbox.Task[Payload]) error {
		f, err := os.OpenFile(filepath.Join(dir, "starts"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := fmt.Fprintf(f, "%s %s %d\n", task.Payload.K, task.Payload.How, time.Now().UnixNano()); err != nil {
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

// Poisoned is a poison task and its starts in all relays.
type Poisoned struct {
	How    string
	Starts []time.Time
}

// ReadStarts returns the poison tasks that were started, by K.
func ReadStarts(dir string) (map[string]*Poisoned, error) {
	text, err := os.ReadFile(filepath.Join(dir, "starts"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	all := map[string]*Poisoned{}
	for line := range strings.Lines(string(text)) {
		var k, how string
		var at int64
		if _, err := fmt.Sscan(line, &k, &how, &at); err != nil {
			return nil, fmt.Errorf("the file of starts: %q: %w", line, err)
		}
		if all[k] == nil {
			all[k] = &Poisoned{How: how}
		}
		all[k].Starts = append(all[k].Starts, time.Unix(0, at))
	}
	return all, nil
}
