package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// tooMany has claims of more than limit tasks of a type fail with a SQLSTATE. With 57014 they take
// too long, as those of large tasks do on a slow network.
func (db *database) tooMany(t *testing.T, taskType string, limit int, code string) {
	t.Helper()
	db.Do(t, `CREATE SEQUENCE too_many`)
	db.Do(t, strings.NewReplacer("$type", taskType, "$limit", strconv.Itoa(limit), "$code", code).Replace(`
		CREATE FUNCTION too_many() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		  IF (SELECT count(*) FROM claimed WHERE task_type = '$type' AND state = 'ready') > $limit THEN
		    PERFORM nextval('too_many');
		    RAISE EXCEPTION 'too slow' USING ERRCODE = '$code';
		  END IF;
		  RETURN NULL;
		END $$;
		CREATE TRIGGER too_many_updated AFTER UPDATE ON outbox.task REFERENCING OLD TABLE AS claimed FOR EACH STATEMENT
		EXECUTE FUNCTION too_many();
		CREATE TRIGGER too_many_deleted AFTER DELETE ON outbox.task REFERENCING OLD TABLE AS claimed FOR EACH STATEMENT
		EXECUTE FUNCTION too_many()`))
}

// A claim that takes too long is not repeated as it was, and its lane remembers that.
func TestAClaimOfManyThatTimesOutIsMadeSmaller(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for name, c := range map[string]struct {
		kind string
		once bool
	}{
		"batch":   {"batch", false},
		"leased":  {"leased", false},
		"RunOnce": {"leased", true},
	} {
		tests[name] = func(t *testing.T) {
			db := newDatabase(t)
			db.tooMany(t, "IT", 4, "57014")
			db.Enqueue(t, "IT", 100)
			reg := handlers.New()
			relaytest.Register(reg, c.kind, "IT", 32, func(context.Context, *sql.Tx, []*outbox.Task[payload]) error {
				return nil
			})
			log := ""
			if c.once {
				log = once(t, db, reg, relay.Config{Workers: 12})
				db.want(t, 0, "tasks left", `SELECT count(*) FROM outbox.task`)
			} else {
				r := run(t, db, reg, relay.Config{Workers: 12, PollInterval: 50 * time.Millisecond})
				db.Emptied(t, 20*time.Second)
				log = r.Log.String()
			}
			if strings.Contains(log, outageBegins) {
				t.Error("an outage was logged")
			}
			if n := db.Int(t, `SELECT last_value FROM too_many`); n < 2 {
				t.Errorf("%d claims were too large, want more", n)
			}
		}
	}
	relaytest.Together(t, tests)
}

// A relay with many workers does not ask for hundreds of large tasks at once: over a slow network none
// of them would begin before all have arrived.
func TestAClaimOfLargeLeasedTasksTakesFew(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.tooMany(t, "IT", 100, "57014")
	db.Do(t, `INSERT INTO outbox.task (task_type, payload)
		SELECT 'IT', jsonb_build_object('n', n, 'large', repeat('x', 100 << 10)) FROM generate_series(1, 300) n`)
	reg := handlers.New()
	relaytest.Register(reg, "leased", "IT", 1, func(context.Context, *sql.Tx, []*outbox.Task[payload]) error {
		return nil
	})
	run(t, db, reg, relay.Config{Workers: 400, PollInterval: 50 * time.Millisecond})
	db.Emptied(t, 30*time.Second)
	if n := db.Int(t, `SELECT count(*) FROM pg_sequences WHERE sequencename = 'too_many' AND last_value IS NOT NULL`); n > 0 {
		t.Error("a claim took more than 100 tasks of 100 KiB")
	}
}

// What another type does well says nothing about the one that fails: it is named, in the log once a
// minute and in Health for as long as it fails.
func TestATypeWhoseClaimsFailIsNamedWhileOthersGoOn(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for code, kind := range map[string]string{"57014": "tx", "40001": "batch", "08006": "tx", "57P03": "leased",
		"53200": "leased", "25006": "batch", "XX000": "leased"} {
		tests[code+" "+kind] = func(t *testing.T) {
			db := newDatabase(t)
			db.tooMany(t, "IT", 0, code)
			db.Enqueue(t, "IT", 5)
			reg := handlers.New()
			nothing := func(context.Context, *sql.Tx, []*outbox.Task[payload]) error { return nil }
			relaytest.Register(reg, kind, "IT", 4, nothing)
			relaytest.Register(reg, kind, "OTHER", 4, nothing)
			r := run(t, db, reg, relay.Config{Workers: 4, PollInterval: 50 * time.Millisecond})
			eventually(t, 20*time.Second, "Health names the type", func() bool {
				db.Enqueue(t, "OTHER", 1)
				db.doneOf(t, "OTHER")
				return errors.Is(r.Health(), relay.ErrTypeFails)
			})
			if text := r.Health().Error(); !strings.Contains(text, "IT") || !strings.Contains(text, code) ||
				strings.Contains(text, "too slow") {
				t.Errorf("Health: %s; want it to name the type and the SQLSTATE without PostgreSQL's words", text)
			}
			for range 5 {
				db.Enqueue(t, "OTHER", 1)
				db.doneOf(t, "OTHER")
			}
			r.Log.Want(t, 1, "cannot be claimed")
			level := "level=WARN"
			if code == "XX000" {
				level = "level=ERROR"
			}
			for _, want := range []string{level, "task_type=IT", "too slow", "failures="} {
				if !strings.Contains(r.Log.String(), want) {
					t.Errorf("the log lacks %q", want)
				}
			}
			r.Log.Want(t, 0, outageBegins)
			db.Do(t, `DROP FUNCTION too_many CASCADE`)
			db.Emptied(t, 20*time.Second)
			eventually(t, 20*time.Second, "it is healthy again", func() bool { return r.Health() == nil })
		}
	}
	relaytest.Together(t, needs.Few(t, tests, "57014 tx", "40001 batch", "XX000 leased"))
}

// A type that fails every second time never fails three times in a row, and is named all the same.
func TestATypeThatFailsEverySecondTimeIsNamed(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for _, kind := range []string{"tx", "leased"} {
		tests[kind] = func(t *testing.T) {
			db := newDatabase(t)
			db.Do(t, `CREATE SEQUENCE claims`) // which no rollback sets back
			db.Do(t, `CREATE FUNCTION every_second() RETURNS trigger LANGUAGE plpgsql AS $$
				BEGIN
				  IF EXISTS (SELECT FROM claimed WHERE state = 'ready') AND nextval('claims') % 2 = 0 THEN
				    RAISE EXCEPTION 'now and again' USING ERRCODE = '57014';
				  END IF;
				  RETURN NULL;
				END $$;
				CREATE TRIGGER every_second_updated AFTER UPDATE ON outbox.task REFERENCING OLD TABLE AS claimed FOR EACH STATEMENT
				EXECUTE FUNCTION every_second();
				CREATE TRIGGER every_second_deleted AFTER DELETE ON outbox.task REFERENCING OLD TABLE AS claimed FOR EACH STATEMENT
				EXECUTE FUNCTION every_second()`)
			reg := handlers.New()
			relaytest.Register(reg, kind, "IT", 1, func(context.Context, *sql.Tx, []*outbox.Task[payload]) error {
				return nil
			})
			db.Enqueue(t, "IT", 100)
			r := run(t, db, reg, relay.Config{Workers: 1, PollInterval: 20 * time.Millisecond})
			eventually(t, 30*time.Second, "Health names the type", func() bool {
				return errors.Is(r.Health(), relay.ErrTypeFails)
			})
			if text := r.Health().Error(); !strings.Contains(text, "IT") || !strings.Contains(text, "57014") {
				t.Errorf("Health: %s; want it to name the type and the SQLSTATE", text)
			}
			r.Log.Want(t, 1, "cannot be claimed")
			db.Do(t, `DROP FUNCTION every_second CASCADE`)
			eventually(t, 30*time.Second, "it is healthy again", func() bool {
				db.Enqueue(t, "IT", 1)
				db.doneOf(t, "IT")
				return r.Health() == nil
			})
		}
	}
	relaytest.Together(t, tests)
}

// A goroutine that a handler leaves behind may end its transaction or its connection at any moment,
// also while the relay commits.
func TestAHandlerWhoseGoroutineEndsItsConnectionIsNoOutage(t *testing.T) {
	t.Parallel()
	most := 15
	if needs.InCI() {
		most = 40
	}
	tests := map[string]func(*testing.T){}
	for name, end := range map[string]func(db *database, tx *sql.Tx, pid int){
		"commits":    func(_ *database, tx *sql.Tx, _ int) { _ = tx.Commit() },
		"rolls back": func(_ *database, tx *sql.Tx, _ int) { _ = tx.Rollback() },
		"terminates": func(db *database, _ *sql.Tx, pid int) { _, _ = db.Exec(`SELECT pg_terminate_backend($1)`, pid) },
	} {
		tests[name] = func(t *testing.T) {
			db := newDatabase(t)
			reg := handlers.New()
			var left sync.WaitGroup
			var ran atomic.Int64
			registerTx(reg, outbox.NewTaskType[payload]("ENDS"),
				func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
					ran.Add(1)
					var pid int
					if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
						return err
					}
					left.Go(func() {
						for range 3 {
							end(db, tx, pid)
							runtime.Gosched()
						}
					})
					return nil
				}, handlers.MaxAttempts(50), handlers.Backoff(constant(time.Millisecond)))
			registerTx(reg, outbox.NewTaskType[payload]("OTHER"), txEffect)
			db.Enqueue(t, "ENDS", most)
			own := open(t, db.URL) // the test's statements meet no connection that was ended
			r := run(t, own, reg, relay.Config{Workers: 4, PollInterval: 50 * time.Millisecond})
			eventually(t, 30*time.Second, "many have run", func() bool {
				return int(ran.Load()) >= most*3/2 || db.Int(t, `SELECT count(*) FROM outbox.task`) == 0
			})
			for range 5 {
				db.Enqueue(t, "OTHER", 1)
				db.doneOf(t, "OTHER")
			}
			r.Log.Want(t, 0, outageBegins)
			r.Stop()
			left.Wait()
			db.Do(t, `DELETE FROM outbox.task`)
			db.Do(t, `DELETE FROM outbox.running`)
		}
	}
	relaytest.Together(t, tests)
}
