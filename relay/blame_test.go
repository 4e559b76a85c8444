package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/testing/faultmap"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// raised is where a statement fails once, with the code of its task's row in planned: in the
// handler, in a trigger that the handler's write has deferred, and at the relay's own end of the run.
const raisedSQL = `
CREATE TABLE planned (task_id bigint, place text, code text, counts bool);
CREATE FUNCTION raise_planned(place text, of_task bigint) RETURNS void LANGUAGE plpgsql SET search_path = public AS $$
DECLARE
  p planned;
BEGIN
  SELECT * INTO p FROM planned WHERE planned.task_id = of_task AND planned.place = raise_planned.place;
  IF FOUND AND nextval('once_' || of_task) = 1 THEN
    RAISE EXCEPTION 'planned' USING ERRCODE = p.code;
  END IF;
END $$;
CREATE FUNCTION raise_late() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN PERFORM raise_planned(TG_ARGV[0], CASE TG_OP
WHEN 'DELETE' THEN OLD.task_id ELSE NEW.task_id END); RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END; END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
EXECUTE FUNCTION raise_late('deferred');
CREATE TRIGGER own BEFORE DELETE ON outbox.running FOR EACH ROW EXECUTE FUNCTION raise_late('own')`

// stateError is an error of PostgreSQL's.
type stateError string

func (s stateError) Error() string    { return string(s) }
func (s stateError) SQLState() string { return string(s) }

var sqlstate = regexp.MustCompile(`\b[0-9A-Z]{5}\b|\b[0-9A-Z]{2}\b`)

// I6: of each SQLSTATE the attempt counts as docs/faults.md says, by the statement that failed.
func TestAnAttemptCountsByTheStatementThatFailed(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, raisedSQL)
	for _, row := range faultmap.Table(t, "PostgreSQL") {
		if strings.HasPrefix(row["SQLSTATE"], "none") {
			continue
		}
		codes := sqlstate.FindAllString(row["SQLSTATE"], -1)
		if len(codes) > 10 { // of those that are alike
			codes = []string{"23505", "P0001"}
		}
		for _, code := range codes {
			if len(code) == 2 {
				code += "ZZZ"
			}
			for _, place := range []string{"handler", "deferred", "own"} {
				counts := strings.HasPrefix(row["counts, from the handler"], "yes")
				if place == "own" {
					counts = strings.HasPrefix(row["counts, from the relay"], "yes")
				}
				if place == "deferred" && pgerr.Lost(stateError(code)) {
					continue // no statement of an app says that and goes on
				}
				id := db.Int(t, `WITH t AS (INSERT INTO outbox.task (task_type, payload, state, run_at)
					VALUES ('TX', '{}', 'scheduled', now() + interval '1 hour') RETURNING task_id)
					INSERT INTO planned SELECT task_id, $1, $2, $3 FROM t RETURNING task_id`, place, code, counts)
				db.Do(t, fmt.Sprintf(`CREATE SEQUENCE once_%d`, id))
			}
		}
	}
	reg := handlers.New()
	relaytest.Register(reg, "tx", "TX", 1, func(ctx context.Context, tx *sql.Tx,
		tasks []*outbox.Task[payload]) error {
		if _, err := tx.ExecContext(ctx, `SELECT raise_planned('handler', $1)`, tasks[0].ID); err != nil {
			return err
		}
		return effect(ctx, tx, tasks[0].ID, tasks[0].Attempt)
	}, handlers.MaxAttempts(1), retrySoon())
	run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	db.Do(t, `SELECT outbox.run_task_now(task_id) FROM planned`)
	db.Emptied(t, time.Minute)
	db.want(t, "", "not as docs/faults.md says",
		`SELECT string_agg(code || ' in the ' || place || ' counts ' || NOT counts, ', ')
		FROM planned p WHERE counts <> EXISTS (SELECT FROM outbox.dead_task d WHERE d.task_id = p.task_id)`)
	db.Do(t, `DELETE FROM outbox.dead_task`)
}
