package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/relay"
)

func TestKeptTypesHaveAHistoryOfWhatIsFinished(t *testing.T) {
	boom := errors.New(`it's "\boom"`)
	results := map[string]error{"NIL": nil, "DISCARD": handlers.Discard(boom), "DEAD": handlers.Dead(boom),
		"SNOOZE": handlers.Snooze(time.Hour), "RETRY": boom}
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg := handlers.New()
		for name, result := range results {
			kinds[kind](reg, name, func(*outbox.Task[payload]) error {
				return result
			}, handlers.Retention(time.Hour), handlers.Backoff(constant(time.Hour)), handlers.NoJitter())
			db.Do(t, `INSERT INTO outbox.task (task_type, priority, payload, headers)
				VALUES ($1, -4, '{"N": 1, "text": "it''s \\ \"so\""}', '{"trace": "x''\\y"}'), ($1, 3, '{"N": 2}', NULL)`, name)
		}
		kinds[kind](reg, "UNKEPT", func(*outbox.Task[payload]) error { return nil })
		db.Enqueue(t, "UNKEPT", 3)
		db.Do(t, `CREATE TABLE before AS SELECT * FROM outbox.task; CREATE TABLE said (query text);
			CREATE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.said SELECT current_query();
			RETURN NULL; END $$;
			CREATE TRIGGER say AFTER INSERT ON outbox.done_task FOR EACH STATEMENT EXECUTE FUNCTION say()`)
		once(t, db, reg, relay.Config{})
		if said := db.Text(t, `SELECT string_agg(query, E'\n') FROM said`); said == "" || strings.Contains(said, `"N"`) {
			t.Errorf("payloads stand in the text of statements: %s", said)
		}
		discarded := "DISCARD discard: " + boom.Error()
		db.want(t, discarded+", "+discarded+", NIL, NIL", "kept as they were, for an hour",
			`SELECT string_agg(concat_ws(' ', task_type, d.last_error), ', ' ORDER BY task_type)
			   FROM outbox.done_task d JOIN before b USING (task_id, task_type, priority, payload, created_at, run_at)
			  WHERE d.headers IS NOT DISTINCT FROM b.headers AND d.attempt = 1
			    AND keep_until - finished_at BETWEEN interval '59 minutes' AND interval '61 minutes'
			    AND d.attempted_at >= created_at AND finished_at BETWEEN d.attempted_at AND clock_timestamp()`)
		db.wantRows(t, 4, `outbox.done_task`)
		db.wantRows(t, 2, `outbox.dead_task`)
		db.wantRows(t, 4, `outbox.task`)
	})
}

// Whatever ends the claim between the handler and the commit: the history says done of what is done
// only. The payloads of the batch are too much for one statement.
func TestTheHistoryIsWrittenWithTheClaim(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	handlers.Batch(reg, typeBatch, 200, batchEffect, handlers.Retention(time.Hour), retrySoon())
	db.Do(t, `CREATE SEQUENCE crashes;
		CREATE FUNCTION crash() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF nextval('public.crashes') <= 2 THEN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(1); END IF;
			RETURN NULL; END $$;
		CREATE TRIGGER crash AFTER INSERT ON outbox.done_task FOR EACH ROW EXECUTE FUNCTION crash()`)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload)
		SELECT 'BATCH', jsonb_build_object('text', repeat('it''s', 50000)) FROM generate_series(1, 60)`)
	run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	db.Emptied(t, 60*time.Second)
	db.OnceEach(t, 60)
	db.wantRows(t, 60, `outbox.done_task WHERE payload->>'text' = repeat('it''s', 50000)`)
}

// Nothing of what ends a claim stays when the handler has ended the claim's transaction. Until its
// failure is recorded, a run stays in the journal, so that the death of the process in between is an
// attempt.
func TestAHandlerThatRollsItsClaimBackStaysInTheJournalUntilThatIsRecorded(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		rollBack := func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[payload]) error {
			_, err := tx.ExecContext(ctx, "ROLLBACK")
			return err
		}
		reg := handlers.New()
		later := []handlers.Option{handlers.Backoff(constant(time.Hour)), handlers.NoJitter()}
		registerTx(reg, typeTx, rollBack, later...)
		registerTx(reg, outbox.NewTaskType[payload]("KEPT"), rollBack, append(later, handlers.Retention(time.Hour))...)
		db.Do(t, `CREATE TABLE gone (task_id bigint, xid xid8);
			CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				INSERT INTO public.gone VALUES (OLD.task_id, pg_current_xact_id()); RETURN NULL; END $$;
			CREATE TRIGGER note AFTER DELETE ON outbox.running FOR EACH ROW EXECUTE FUNCTION note()`)
		db.Enqueue(t, "TX", 1)
		db.Enqueue(t, "KEPT", 1)
		once(t, db, reg, relay.Config{})
		db.wantRows(t, 2, `outbox.task t JOIN gone g ON g.task_id = t.task_id AND g.xid::xid = t.xmin
			WHERE t.attempt = 1 AND t.state = 'scheduled'`)
		db.wantRows(t, 0, `outbox.done_task`)
	})
}
