package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// large enqueues a task whose payload is stored out of line: in text that does not compress, of many
// chunks. xid is of its transaction. A statement in it may change the task.
func (db *database) large(t *testing.T, taskType, change string) (id int, xid string) {
	t.Helper()
	db.inTx(t, func(tx *sql.Tx) error {
		err := tx.QueryRow(`INSERT INTO outbox.task (task_type, payload)
			SELECT $1, jsonb_build_object('large', string_agg(md5(n::text || random()), '')) FROM generate_series(1, 500) n
			RETURNING task_id, pg_current_xact_id()::xid::text`, taskType).Scan(&id, &xid)
		if err == nil && change != "" {
			_, err = tx.Exec(`UPDATE outbox.task SET ` + change + ` WHERE task_id = ` + strconv.Itoa(id))
		}
		return err
	})
	return id, xid
}

// destroy destroys the payload of a large task, of a transaction, as damage on the disk does: what the
// TOAST table has of them is gone.
func (db *database) destroy(t *testing.T, id int64, xid string) {
	t.Helper()
	t.Cleanup(func() { db.Do(t, `TRUNCATE outbox.task`) }) // not DELETE, which PostgreSQL 14 refuses
	toast := db.Text(t, `SELECT reltoastrelid::regclass FROM pg_class WHERE oid = 'outbox.task'::regclass`)
	// PostgreSQL lets nobody change a TOAST table, so it is a plain one for the moment.
	kind := `UPDATE pg_class SET relkind = '%s' WHERE oid = '` + toast + `'::regclass; `
	db.Do(t, fmt.Sprintf(kind, "r")+`DELETE FROM `+toast+` WHERE xmin = '`+xid+`'; `+fmt.Sprintf(kind, "t"))
	// It is read whatever a transaction deleted, until vacuum has been on each page after the last snapshot.
	eventually(t, 20*time.Second, "the payload cannot be read", func() bool {
		db.Do(t, `VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) `+toast)
		_, err := db.ExecContext(t.Context(), `SELECT payload::text FROM outbox.task WHERE task_id = $1`, id)
		return err != nil
	})
}

// damaged enqueues a task whose payload cannot be read.
func (db *database) damaged(t *testing.T, taskType, change string) (id int) {
	t.Helper()
	id, xid := db.large(t, taskType, change)
	db.destroy(t, int64(id), xid)
	return id
}

// Damage of the disk in one row costs no other task, of its type or of another. The task is put off
// and named, and no attempt is counted.
func TestATaskThatCannotBeReadIsSetAsideAndNamed(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for name, kind := range map[string]string{"tx": "tx", "batch": "batch", "group": "group", "leased": "leased",
		"total": "leased", "RunOnce": "leased"} {
		tests[name] = func(t *testing.T) {
			db := newDatabase(t)
			db.Enqueue(t, "IT", 10)
			bad := db.damaged(t, "IT", "")
			db.Enqueue(t, "IT", 5)
			worse := db.damaged(t, "IT", "")
			db.Enqueue(t, "IT", 5)
			db.Enqueue(t, "OTHER", 3)
			reg := handlers.New()
			count := func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
				for _, task := range tasks {
					if _, err := db.ExecContext(ctx, `INSERT INTO effect (task_id, attempt) VALUES ($1, $2)`, task.ID,
						task.Attempt); err != nil {
						return err
					}
				}
				return nil
			}
			var opts []handlers.Option
			if name == "total" {
				opts = []handlers.Option{handlers.MaxRunning(5)}
			}
			registerKind(reg, kind, "IT", 20, count, opts...)
			registerKind(reg, kind, "OTHER", 20, count)
			log := ""
			if name == "RunOnce" {
				log = once(t, db, reg, relay.Config{Workers: 20})
			} else {
				r := run(t, db, reg, relay.Config{Workers: 20, PollInterval: 50 * time.Millisecond})
				db.becomes(t, 20*time.Second, 2, "the other tasks are done", `SELECT count(*) FROM outbox.task`)
				db.becomes(t, 20*time.Second, 2, "those that cannot be read are put off",
					`SELECT count(*) FROM outbox.task WHERE state = 'scheduled'`)
				if err := r.Health(); err != nil {
					t.Errorf("Health: %v", err)
				}
				log = r.Log.String()
			}
			db.want(t, 23, "effects in the first attempt", `SELECT count(*) FROM effect WHERE attempt = 1`)
			db.want(t, fmt.Sprintf("%d 0 true, %d 0 true", bad, worse), "put off for long, with the reason",
				`SELECT string_agg(task_id || ' ' || attempt || ' ' || (last_error LIKE '%cannot be read%chunk%'
					AND run_at > now() + interval '50 minutes'), ', ' ORDER BY task_id) FROM outbox.task`)
			noOutage(t, log)
			for _, id := range []int{bad, worse} {
				want := fmt.Sprintf("task_type=IT task_id=%d", id)
				if n := strings.Count(log, want); n != 1 || !strings.Contains(log, "level=ERROR") {
					t.Errorf("%d records of %q, want 1 of level ERROR", n, want)
				}
			}
		}
	}
	relaytest.Together(t, needs.Few(t, tests, "tx", "group", "RunOnce"))
}

// However such a task comes to be ready, what makes it ready does not read its payload.
func TestATaskThatCannotBeReadIsPromotedAndTakenOverAsOthers(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for _, change := range []string{
		`state = 'scheduled', run_at = now() - interval '1 minute'`,
		`ordering_key = 'k', state = 'waiting'`,
		`state = 'leased', relay_id = gen_random_uuid(), lease_token = gen_random_uuid(), leased_until = now() - interval '1 minute'`,
	} {
		db.damaged(t, "TX", change)
	}
	db.Do(t, `INSERT INTO outbox.headless_key (task_type, ordering_key) VALUES ('TX', 'k')`)
	db.Enqueue(t, "TX", 3)
	l := newLoops(resting(t, db, all(), &records{}), "")
	l.done(t, "take over")
	l.Close()
	db.Due(t)
	once(t, db, all(), relay.Config{})
	db.want(t, 3, "effects", `SELECT count(*) FROM effect`)
	db.want(t, 3, "put off", `SELECT count(*) FROM outbox.task WHERE state = 'scheduled' AND run_at > now() AND attempt = 0
		AND last_error IS NOT NULL`)
}

// The result of a task whose payload is damaged while it runs cannot be written, as its history has
// the payload. It holds up no other.
func TestAResultWhosePayloadCannotBeReadIsRefusedInTheEnd(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	id, xid := db.large(t, "LEASED", "")
	db.Enqueue(t, "LEASED", 3)
	reg := leased(func(_ context.Context, task *outbox.Task[payload]) error {
		if task.ID == int64(id) {
			db.destroy(t, task.ID, xid)
		}
		return nil
	}, handlers.Retention(time.Hour))
	r := run(t, db, reg, relay.Config{Workers: 4, PollInterval: 50 * time.Millisecond})
	db.becomes(t, 20*time.Second, 3, "the others are done", `SELECT count(*) FROM outbox.done_task`)
	eventually(t, 20*time.Second, "the result is refused", func() bool {
		return r.Log.Count(fmt.Sprintf("was refused; it stays leased until its lease or this relay ends\" task_type=LEASED task_id=%d", id)) == 1
	})
	r.Stop()
	db.Do(t, `VACUUM outbox.task`) // also its TOAST table: no transaction hinders that now
}

// A claim by due time meets one that is far from the start of the lane.
func TestAnOldTaskThatCannotBeReadIsSetAside(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	bad := db.damaged(t, "IT", "priority = 5")
	db.Enqueue(t, "IT", 60)
	reg := handlers.New()
	relaytest.Register(reg, "tx", "IT", 1, doNothing)
	r := run(t, db, reg, relay.Config{Workers: 1, PollInterval: 50 * time.Millisecond})
	db.becomes(t, 20*time.Second, 1, "the other tasks are done", `SELECT count(*) FROM outbox.task`)
	db.becomes(t, 20*time.Second, 1, "the one that cannot be read is put off",
		`SELECT count(*) FROM outbox.task WHERE state = 'scheduled'`)
	r.Log.Want(t, 1, fmt.Sprintf("task_type=IT task_id=%d", bad))
	r.Log.Want(t, 0, "cannot be claimed or recorded")
}

// What is wrong with rights or definitions is wrong for all tasks of a type: none is put off for it.
func TestMissingRightsSetNoTaskAside(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	definition := db.Text(t, `SELECT pg_get_functiondef('outbox.rest(outbox.task)'::regprocedure)`)
	db.Do(t, `CREATE OR REPLACE FUNCTION outbox.rest(t outbox.task) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
		BEGIN
		  RAISE 'permission denied for a column' USING ERRCODE = 'insufficient_privilege';
		END $$`)
	db.Enqueue(t, "IT", 3)
	reg := handlers.New()
	relaytest.Register(reg, "tx", "IT", 1, doNothing)
	r := run(t, db, reg, relay.Config{Workers: 2, PollInterval: 50 * time.Millisecond})
	eventually(t, 20*time.Second, "Health names the type", func() bool {
		return errors.Is(r.Health(), relay.ErrTypeFails) ||
			db.Int(t, `SELECT count(*) FROM outbox.task WHERE state = 'scheduled'`) == 3
	})
	db.want(t, 3, "ready", `SELECT count(*) FROM outbox.task WHERE state = 'ready'`)
	r.Log.Want(t, 0, "in vain")
	db.Do(t, definition)
	db.Emptied(t, 20*time.Second)
}

// The doctor's finding about foreign keys is true: a failed attempt of a Tx task deletes the row and
// puts it back.
func TestAForeignKeyToATaskIsHurtByTheFirstFailedAttempt(t *testing.T) {
	t.Parallel()
	for action, want := range map[string]string{"CASCADE": "", "SET NULL": "mail null", "NO ACTION": "mail 1"} {
		t.Run(action, func(t *testing.T) {
			db := newDatabase(t)
			db.Do(t, `CREATE TABLE mail (name text DEFAULT 'mail', task_id bigint REFERENCES outbox.task ON DELETE `+action+`)`)
			db.Enqueue(t, typeTx.Name(), 1)
			db.Do(t, `INSERT INTO mail (task_id) SELECT task_id FROM outbox.task`)
			reg := handlers.New()
			handlers.Tx(reg, typeTx, func(context.Context, *sql.Tx, *outbox.Task[payload]) error {
				return errors.New("not now")
			})
			r := run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
			if action == "NO ACTION" {
				eventually(t, 30*time.Second, "the type fails", func() bool { return errors.Is(r.Health(), relay.ErrTypeFails) })
			} else {
				eventually(t, 30*time.Second, "the attempt has failed", func() bool {
					return db.Int(t, `SELECT attempt FROM outbox.task`) > 0
				})
			}
			if got := db.Text(t, `SELECT string_agg(name || ' ' || COALESCE(task_id::text, 'null'), ', ') FROM mail`); got != want {
				t.Errorf("the app has %q, want %q", got, want)
			}
		})
	}
}

func TestTasksOfARenamedSchemaRun(t *testing.T) {
	t.Parallel()
	db := open(t, relaytest.Migrated(t))
	start := func(name string) error {
		t.Helper()
		r, err := relay.New(db.DB, all(), relay.Config{Schema: name, Logger: discard()})
		must(err)
		return r.RunOnce(t.Context())
	}
	for _, name := range [][2]string{{"outbox", "tenant"}, {"tenant", "outbox"}} { // there and back
		db.Do(t, `DROP TABLE IF EXISTS effect; CREATE TABLE effect (task_id bigint, attempt int)`)
		db.Do(t, `ALTER SCHEMA `+name[0]+` RENAME TO `+name[1])
		for of, text := range map[string]string{name[0]: "is at version 0", name[1]: "was renamed: its functions work on"} {
			if err := start(of); !errors.Is(err, schema.ErrNotMigrated) || !strings.Contains(err.Error(), text) {
				t.Errorf("a relay of the schema %s: got %v, want ErrNotMigrated: %s", of, err, text)
			}
		}
		must(schema.Migrate(t.Context(), db.DB, schema.Schema(name[1])))
		db.inTx(t, func(tx *sql.Tx) error {
			for _, taskType := range []string{"TX", "BATCH", "LEASED"} {
				for _, o := range [][]outbox.Option{nil, {outbox.Unique("key")}, {outbox.OrderedBy("key")}, {outbox.MaxAttempts(1)}} {
					_, err := outbox.Enqueue(t.Context(), tx, taskType, struct{}{}, append(o, outbox.Schema(name[1]))...)
					must(err)
				}
			}
			return nil
		})
		// Each fails once, or dies, as there is no table for its effect.
		db.Do(t, `ALTER TABLE effect RENAME TO hidden`)
		relaytest.Once(t, db.DB, all(), relay.Config{Schema: name[1]})
		db.Do(t, `ALTER TABLE hidden RENAME TO effect; UPDATE `+name[1]+`.task SET run_at = now() WHERE state = 'scheduled'`)
		db.Want(t, "3", `SELECT count(*) FROM `+name[1]+`.dead_task`)
		_, err := relaytest.Admin(t, db.DB, name[1]).Redrive(t.Context(), admin.Filter{All: true}, admin.Bulk{})
		must(err)
		relaytest.Once(t, db.DB, all(), relay.Config{Schema: name[1]})
		db.Want(t, "12 0", `SELECT (SELECT count(DISTINCT task_id) FROM effect) || ' ' || count(*) FROM `+name[1]+`.task`)
	}
}
