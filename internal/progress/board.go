// Package progress has what handlers tell of their runs: how far they are, which is in the row of the
// relay while they run, and their results, which go to the history with the end of the task.
package progress

import (
	"context"
	"database/sql"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

const (
	interval = time.Second // between two writes, and for one
	mostRuns = 1000        // that one relay shows
)

// Params are what a Board needs.
type Params struct {
	Schema  pg.Schema
	RelayID string
	Pool    *pg.Pool
	Log     *slog.Logger
	Ahead   func() time.Duration // PostgreSQL's clock less this process's
}

// Board is how far the running tasks of a relay are. It writes them to the relay's row together, at
// most once a second, so they are gone with the relay. Its methods are safe for concurrent use; a nil
// Board shows nothing.
type Board struct {
	p       Params
	changed chan struct{} // of capacity one

	mu    sync.Mutex
	tasks map[int64]entry
}

// entry is how far a task is, as in the relay's row.
type entry struct {
	Fraction float64   `json:"fraction"`
	Message  string    `json:"message,omitempty"`
	At       time.Time `json:"at"` // by PostgreSQL's clock
	of       *Notes
}

// New returns a Board.
func New(p Params) *Board {
	return &Board{p: p, changed: make(chan struct{}, 1), tasks: map[int64]entry{}}
}

// set shows how far a task is. Beyond a bound further tasks are not shown.
func (b *Board) set(of *Notes, taskID int64, fraction float64, message string) {
	if b == nil {
		return
	}
	e := entry{Fraction: fraction, Message: message, At: time.Now().Add(b.p.Ahead()).UTC(), of: of}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, shown := b.tasks[taskID]; shown || len(b.tasks) < mostRuns {
		b.tasks[taskID] = e
		b.poke()
	}
}

// drop hides what these notes have shown of a task. Of two runs of a task, one of which has lost its lease, the
// other's stays.
func (b *Board) drop(of *Notes, taskID int64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tasks[taskID].of == of {
		delete(b.tasks, taskID)
		b.poke()
	}
}

func (b *Board) poke() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// Run writes what has changed until stop is closed. After an error it tries again a second later. A
// refusal is logged once.
func (b *Board) Run(stop <-chan struct{}) {
	refused := false
	for {
		select {
		case <-b.changed:
		case <-stop:
			return
		}
		err := b.write()
		if err != nil {
			b.poke()
		}
		if pgerr.Refusal(err) && !refused {
			b.p.Log.Warn("outbox: the progress of tasks cannot be shown", "error", pgerr.LogText(err))
		}
		refused = pgerr.Refusal(err)
		select {
		case <-time.After(interval):
		case <-stop:
			return
		}
	}
}

const showSQL = `/* outbox: show progress */
UPDATE outbox.relay SET progress = NULLIF($2::jsonb, '{}') WHERE relay_id = $1::uuid
RETURNING ` + pg.CommitAsync + `, set_config('idle_in_transaction_session_timeout', '2000', true)`

// write writes all of it by one statement, which commits by itself, or behind a pooler within 2 s: beats change
// the same row, and must not wait for a COMMIT that does not come. The heartbeat makes the row: while it is missing
// there is another try.
func (b *Board) write() error {
	b.mu.Lock()
	text, err := json.Marshal(b.tasks)
	b.mu.Unlock()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), interval)
	defer cancel()
	conn, err := b.p.Pool.Get(ctx)
	if err != nil {
		return err
	}
	var result sql.Result
	err = b.p.Pool.Own(ctx, conn, func(q pg.Querier) (err error) {
		result, err = q.ExecContext(ctx, b.p.Schema.SQL(showSQL), b.p.RelayID, string(text))
		return err
	})
	if err != nil {
		pg.Drop(conn)
		return err
	}
	b.p.Pool.Put(conn)
	if n, err := result.RowsAffected(); err == nil && n == 0 {
		b.poke()
	}
	return nil
}
