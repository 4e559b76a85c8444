package relay

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/await"
	"github.com/txoutbox/outbox/internal/pg"
)

const mostAsked = 1000 // questions that a relay remembers

// answers tell WaitFor that runs have ended: in the relay's process at once, and in others by NOTIFY if they
// have asked for the task. Its methods are safe for concurrent use.
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

// runEnded tells that a run of a task has ended. While nobody waits it costs two loads.
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
	default: // WaitFor polls
	}
}

const answerSQL = `/* outbox: tell who waits for a task */
SELECT pg_notify($1, m), ` + pg.CommitAsync + ` FROM unnest($2::text[]) m`

// answerTimeout bounds a send: a NOTIFY may wait for the COMMIT of another one.
const answerTimeout = time.Second

// run sends answers until stop is closed, and then those that are left.
func (a *answers) run(stop <-chan struct{}) {
	for {
		select {
		case id := <-a.out:
			a.send(id)
		case <-stop:
			select {
			case id := <-a.out:
				a.send(id)
			default:
			}
			return
		}
	}
}

// send sends an answer with those behind it. One that fails is not repeated: WaitFor polls as well.
func (a *answers) send(id int64) {
	texts := []string{await.Answer(id)}
	for len(a.out) > 0 {
		texts = append(texts, await.Answer(<-a.out))
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	_ = a.pool.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, answerSQL, a.schema, pq.Array(texts))
		return err
	})
}
