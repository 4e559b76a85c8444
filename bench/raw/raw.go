// Package raw is the limit that a library can come close to: the SQL statements of the same work,
// prepared, driven by goroutines on lib/pq, and nothing around them.
package raw

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/lib/pq"
)

// SchemaSQL has the columns that claiming and finishing need, and the index of a lane. There are no
// triggers, counters, journals or checks.
const SchemaSQL = `/* raw: set up */
CREATE TABLE bare_task (
  task_id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_at       timestamptz NOT NULL DEFAULT now(),
  created_at   timestamptz NOT NULL DEFAULT now(),
  leased_until timestamptz,
  lease_token  uuid,
  priority     smallint    NOT NULL DEFAULT 0,
  attempt      smallint    NOT NULL DEFAULT 0,
  state        text        NOT NULL DEFAULT 'ready',
  task_type    text        NOT NULL,
  payload      jsonb       NOT NULL DEFAULT '{}'
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX bare_task_lane ON bare_task (task_type, priority, attempt, task_id) WHERE state = 'ready'`

// LeftSQL counts the tasks that are not done.
const LeftSQL = `/* raw: what is left */
SELECT count(*) FROM bare_task`

const fillSQL = `/* raw: fill */
INSERT INTO bare_task (task_type, payload) SELECT $1, $2::jsonb FROM generate_series(1, $3::int)`

// Fill adds n tasks that are ready.
func Fill(ctx context.Context, db *sql.DB, taskType string, n int, payload string) error {
	_, err := db.ExecContext(ctx, fillSQL, taskType, payload, n)
	return err
}

// Settings are one turn's work.
type Settings struct {
	TaskType string
	Workers  int
	Batch    int  // tasks a claim
	Insert   bool // one row into effect for each task, in the claim's transaction
	Group    bool // each task is deleted in its turn, with a statement of its own and a savepoint
	Leased   bool // claim by UPDATE, committed; finish by DELETE, committed
}

const claimSQL = `/* raw: claim */
WITH c AS MATERIALIZED (
  SELECT task_id FROM bare_task WHERE state = 'ready' AND task_type = $1
   ORDER BY priority, attempt, task_id LIMIT $2 FOR UPDATE SKIP LOCKED)
DELETE FROM bare_task t WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c)) RETURNING t.task_id, t.payload::text`

const lockSQL = `/* raw: lock a group */
SELECT task_id, payload::text, ctid::text FROM bare_task WHERE state = 'ready' AND task_type = $1
 ORDER BY priority, attempt, task_id LIMIT $2 FOR UPDATE SKIP LOCKED`

const leaseToken = "00000000-0000-4000-8000-000000000000"

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
	w := worker{conn: conn, set: set}
	query := claimSQL
	switch {
	case set.Leased:
		query = leaseSQL
	case set.Group:
		query = lockSQL
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
	ids, places, err := read(w.claim.QueryContext(ctx, w.set.TaskType, w.set.Batch))
	switch {
	case err != nil || len(ids) == 0:
	case w.set.Group:
		err = w.group(ctx, ids, places)
	case !w.set.Insert:
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

// group deletes one task after the other and inserts a row for each under a savepoint. Tasks whose
// turn has not come are waiting tasks for the transaction, as those of a group are.
func (w *worker) group(ctx context.Context, ids []int64, places []string) error {
	before := ""
	for i, id := range ids {
		statements := before + "DELETE FROM bare_task WHERE ctid = '" + places[i] + "'; SAVEPOINT one"
		if _, err := w.conn.ExecContext(ctx, statements); err != nil {
			return err
		}
		if w.set.Insert {
			if _, err := w.effectOne.ExecContext(ctx, id); err != nil {
				return err
			}
		}
		before = "RELEASE SAVEPOINT one; "
	}
	return nil
}

// leased claims and finishes by statements that commit by themselves.
func (w *worker) leased(ctx context.Context) (int, error) {
	ids, _, err := read(w.claim.QueryContext(ctx, w.set.TaskType, w.set.Batch, leaseToken))
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	_, err = w.finish.ExecContext(ctx, pq.Array(ids), leaseToken)
	return len(ids), err
}

// read reads the ids of the tasks and, of a group, their places.
func read(rows *sql.Rows, err error) (ids []int64, places []string, _ error) {
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, nil, err
	}
	var id int64
	var payload, place string
	into := []any{&id, &payload, &place}[:len(columns)]
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return nil, nil, err
		}
		ids, places = append(ids, id), append(places, place)
	}
	return ids, places, rows.Err()
}

const notifySQL = `/* raw: enqueue */
INSERT INTO bare_task (task_type, payload) VALUES ($1, $2::jsonb)`

const wakeSQL = `/* raw: wake */
SELECT pg_notify('bare', '')`

// Notify enqueues one task in tx and wakes the listeners.
func Notify(ctx context.Context, tx *sql.Tx, taskType, payload string) error {
	if _, err := tx.ExecContext(ctx, notifySQL, taskType, payload); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, wakeSQL)
	return err
}

// Listen claims one task after each notification, until none is left, and tells its payload. There
// is no polling.
func Listen(ctx context.Context, url, taskType string, handle func(payload string)) (stop func() error, err error) {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return nil, err
	}
	claim, err := db.PrepareContext(ctx, claimSQL)
	l := pq.NewListener(url, 10*time.Millisecond, time.Second, nil)
	if err := errors.Join(err, l.Listen("bare")); err != nil {
		return nil, errors.Join(err, l.Close(), db.Close())
	}
	ended := make(chan error, 1)
	go func() {
		for range l.Notify {
			for {
				var id int64
				var payload string
				err := claim.QueryRowContext(ctx, taskType, 1).Scan(&id, &payload)
				if errors.Is(err, sql.ErrNoRows) {
					break
				}
				if err != nil {
					ended <- err
					return
				}
				handle(payload)
			}
		}
		ended <- nil
	}()
	return func() error { return errors.Join(l.Close(), <-ended, db.Close()) }, nil
}
