package relay

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox/internal/await"
	"github.com/txoutbox/outbox/internal/pg"
)

const mostAsked = 1000 // questions that a relay remembers

// answers are what a relay tells those who wait for tasks: in its process at once, and in others by
// NOTIFY if they have asked for the task. Its methods are safe for concurrent use.
type answers struct {
	schema string
	pool   *pg.Pool
	out    chan int64

	asking atomic.Int64 // the number of asked
	mu     sync.Mutex
	asked  map[int64]time.Time // the latest question, by task
}

func newAnswers(schema string, pool *pg.Pool) *answers {
	return &answers{schema: schema, pool: pool, out: make(chan int64, mostAsked), asked: map[int64]time.Time{}}
}

// heard takes a notification, and reports whether it is a question or an answer.
func (a *answers) heard(notification string) bool {
	if id := await.Answered(notification); id > 0 {
		await.Ended(a.schema, id)
		return true
	}
	id := await.Asked(notification)
	if id > 0 {
		a.note(id, time.Now())
	}
	return id > 0
}

// note remembers a question, and forgets old ones. Any role can ask, so their number is bounded.
func (a *answers) note(id int64, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for other, at := range a.asked {
		if now.Sub(at) > 2*await.AskAgain {
			delete(a.asked, other)
		}
	}
	if _, known := a.asked[id]; known || len(a.asked) < mostAsked {
		a.asked[id] = now
	}
	a.asking.Store(int64(len(a.asked)))
}

// runEnded tells that a run of a task has ended. Nobody waits: it costs two loads.
func (a *answers) runEnded(id int64) {
	await.Ended(a.schema, id)
	if a.asking.Load() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, asked := a.asked[id]; !asked {
		return
	}
	delete(a.asked, id)
	a.asking.Store(int64(len(a.asked)))
	select {
	case a.out <- id:
	default: // who waits polls
	}
}

const answerSQL = `/* outbox: tell who waits for a task */
SELECT pg_notify($1, $2)`

// run sends answers until stop is closed. One that fails is not repeated: who waits polls as well.
func (a *answers) run(stop <-chan struct{}) {
	for {
		select {
		case id := <-a.out:
			_ = a.pool.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, answerSQL, a.schema, await.Answer(id))
				return err
			})
		case <-stop:
			return
		}
	}
}
