package raw

import (
	"context"
	"database/sql"
	"errors"
	"sync"

	"github.com/lib/pq"
)

// Settings are one turn's work.
type Settings struct {
	TaskType   string
	Workers    int
	Batch      int  // tasks a claim
	Insert     bool // one row into effect for each task, in the claim's transaction
	Savepoints bool // with a statement of its own for each, and a savepoint around it
	Leased     bool // claim by UPDATE, committed; finish by DELETE, committed
}

const claimSQL = `/* raw: claim */
WITH c AS MATERIALIZED (
  SELECT task_id FROM bare_task WHERE state = 'ready' AND task_type = $1
   ORDER BY priority, attempt, task_id LIMIT $2 FOR UPDATE SKIP LOCKED)
DELETE FROM bare_task t WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c)) RETURNING t.task_id, t.payload::text`

const leaseSQL = `/* raw: lease */
WITH c AS MATERIALIZED (
  SELECT task_id FROM bare_task WHERE state = 'ready' AND task_type = $1
   ORDER BY priority, attempt, task_id LIMIT $2 FOR UPDATE SKIP LOCKED)
UPDATE bare_task t SET state = 'leased', attempt = t.attempt + 1, lease_token = $3::uuid,
       leased_until = clock_timestamp() + interval '5 minutes'
 WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c)) RETURNING t.task_id, t.payload::text`

const finishSQL = `/* raw: finish */
DELETE FROM bare_task WHERE task_id = ANY ($1) AND lease_token = $2::uuid`

const effectSQL = `/* raw: effects */
INSERT INTO effect (task_id) SELECT unnest($1::bigint[])`

const effectOneSQL = `/* raw: effect */
INSERT INTO effect (task_id) VALUES ($1)`

// Start starts the workers; done is told of finished tasks. They end when nothing is left, or with
// stop.
func Start(ctx context.Context, url string, set Settings, done func(n int)) (stop func() error, err error) {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return nil, err
	}
	db.SetMaxIdleConns(set.Workers)
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	errs := make([]error, set.Workers)
	for i := range set.Workers {
		group.Go(func() {
			if errs[i] = work(ctx, db, set, done); ctx.Err() != nil {
				errs[i] = nil
			}
		})
	}
	return func() error {
		cancel()
		group.Wait()
		return errors.Join(append(errs, db.Close())...)
	}, nil
}

func work(ctx context.Context, db *sql.DB, set Settings, done func(n int)) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	w := worker{conn: conn, set: set, token: "00000000-0000-4000-8000-000000000000"}
	query := claimSQL
	if set.Leased {
		query = leaseSQL
	}
	prepare := func(query string) (s *sql.Stmt) {
		if err == nil {
			s, err = conn.PrepareContext(ctx, query)
		}
		return s
	}
	w.claim, w.finish = prepare(query), prepare(finishSQL)
	if set.Insert {
		w.effect, w.effectOne = prepare(effectSQL), prepare(effectOneSQL)
	}
	if err != nil {
		return err
	}
	for {
		n, err := w.one(ctx)
		if err != nil || n == 0 {
			return err
		}
		done(n)
	}
}

type worker struct {
	conn                             *sql.Conn
	set                              Settings
	token                            string
	claim, finish, effect, effectOne *sql.Stmt
}

func (w *worker) one(ctx context.Context) (int, error) {
	if w.set.Leased {
		return w.leased(ctx)
	}
	// A *sql.Tx would prepare the statements of its connection anew.
	if _, err := w.conn.ExecContext(ctx, "BEGIN"); err != nil {
		return 0, err
	}
	ids, err := read(w.claim.QueryContext(ctx, w.set.TaskType, w.set.Batch))
	switch {
	case err != nil || len(ids) == 0 || !w.set.Insert:
	case w.set.Savepoints:
		err = w.savepoints(ctx, ids)
	case w.set.Batch == 1:
		_, err = w.effectOne.ExecContext(ctx, ids[0])
	default:
		_, err = w.effect.ExecContext(ctx, pq.Array(ids))
	}
	if err != nil {
		_, _ = w.conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
		return 0, err
	}
	_, err = w.conn.ExecContext(ctx, "COMMIT")
	return len(ids), err
}

// savepoints inserts one row after the other, each under a savepoint.
func (w *worker) savepoints(ctx context.Context, ids []int64) error {
	_, err := w.conn.ExecContext(ctx, "SAVEPOINT one")
	for _, id := range ids {
		if err == nil {
			_, err = w.effectOne.ExecContext(ctx, id)
		}
		if err == nil {
			_, err = w.conn.ExecContext(ctx, "RELEASE SAVEPOINT one; SAVEPOINT one")
		}
	}
	return err
}

// leased claims and finishes by statements that commit by themselves.
func (w *worker) leased(ctx context.Context) (int, error) {
	ids, err := read(w.claim.QueryContext(ctx, w.set.TaskType, w.set.Batch, w.token))
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	_, err = w.finish.ExecContext(ctx, pq.Array(ids), w.token)
	return len(ids), err
}

func read(rows *sql.Rows, err error) ([]int64, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var ids []int64
	var id int64
	var payload string
	for rows.Next() {
		if err := rows.Scan(&id, &payload); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}
