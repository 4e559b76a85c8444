package rights_test

import (
	"context"
	"database/sql"
)

// statements are plain SQL, each in a transaction that is rolled back.
func statements() (out []right) {
	const (
		tasks   = "owner worker"
		viewing = "owner worker viewer operator"
		letters = "owner worker operator"
	)
	for statement, may := range map[string]string{
		// Enqueueing.
		`INSERT INTO outbox.task (task_type, payload) VALUES ('A', '{}') RETURNING task_id`:                                                          "owner enqueuer worker operator",
		`WITH a AS (SELECT 1) INSERT INTO outbox.task (task_type, payload) SELECT 'A', '{}' FROM a`:                                                  "owner enqueuer worker operator",
		`INSERT INTO outbox.task (task_type, run_at, unique_key) VALUES ('A', now() + interval '1 hour', '$payload')`:                                "owner enqueuer worker operator",
		`SELECT outbox.enqueue_task('A', '{}')`:                                                                                                      "owner enqueuer worker",
		`INSERT INTO outbox.keyed_task (task_type, unique_key, on_conflict) VALUES ('A', 'k', 'skip') RETURNING outcome`:                             "owner enqueuer worker",
		`INSERT INTO outbox.task (task_type, state) VALUES ('A', 'scheduled')`:                                                                       letters,
		`INSERT INTO outbox.task (task_type, attempt) VALUES ('A', 5)`:                                                                               letters,
		`INSERT INTO outbox.task (task_id, task_type) OVERRIDING SYSTEM VALUE VALUES (5000, 'A')`:                                                    letters,
		`INSERT INTO outbox.task (task_type, state, relay_id, lease_token) VALUES ('A', 'leased', gen_random_uuid(), gen_random_uuid())`:             tasks,
		`INSERT INTO outbox.task (task_type, payload) VALUES ('A', '{}') RETURNING payload`:                                                          tasks,
		`INSERT INTO outbox.task (task_id, task_type) OVERRIDING SYSTEM VALUE VALUES (1001, 'A') ON CONFLICT (task_id) DO UPDATE SET payload = '{}'`: tasks,

		// Reading.
		`SELECT count(*), max(task_id) FROM outbox.task`:                       "owner enqueuer worker viewer operator",
		`SELECT max(version) FROM outbox.migration`:                            "owner enqueuer worker viewer operator",
		`SELECT state, task_type, last_error, run_at FROM outbox.task`:         viewing,
		`SELECT payload FROM outbox.task`:                                      tasks,
		`SELECT headers FROM outbox.task`:                                      tasks,
		`SELECT unique_key, ordering_key FROM outbox.task`:                     tasks,
		`SELECT lease_token FROM outbox.task`:                                  tasks,
		`SELECT * FROM outbox.task`:                                            tasks,
		`SELECT task FROM outbox.task`:                                         tasks,
		`SELECT task_id FROM outbox.task WHERE payload @> '{"secret": 1}'`:     tasks,
		`SELECT task_id FROM outbox.task ORDER BY payload`:                     tasks,
		`SELECT payload FROM outbox.keyed_task`:                                "owner",
		`SELECT task_type, last_error, reason FROM outbox.dead_task`:           viewing,
		`SELECT payload FROM outbox.dead_task`:                                 letters,
		`SELECT headers FROM outbox.dead_task`:                                 letters,
		`SELECT unique_key, ordering_key FROM outbox.dead_task`:                letters,
		`SELECT task_type, finished_at FROM outbox.done_task`:                  viewing,
		`SELECT payload FROM outbox.done_task`:                                 tasks,
		`SELECT headers FROM outbox.done_task`:                                 tasks,
		`SELECT name, next_at, paused, spec FROM outbox.schedule`:              viewing,
		`SELECT payload FROM outbox.schedule`:                                  tasks,
		`SELECT key FROM outbox.unique_key`:                                    letters,
		`SELECT ordering_key FROM outbox.headless_key`:                         tasks,
		`SELECT host, alive_until, task_types FROM outbox.relay`:               viewing,
		`SELECT task_id, started_at FROM outbox.running`:                       viewing,
		`SELECT token FROM outbox.running`:                                     tasks,
		`SELECT lease_token FROM outbox.slot`:                                  tasks,
		`SELECT * FROM outbox.counter, outbox.counter_log, outbox.maintenance`: viewing,
		`SELECT last_value FROM outbox.wake`:                                   tasks,
		`SELECT * FROM outbox.audit, outbox.sample`:                            viewing,

		// Changing.
		`DELETE FROM outbox.task WHERE task_id = 1001`:                          tasks,
		`UPDATE outbox.task SET payload = '{}' WHERE task_id = 1001`:            tasks,
		`UPDATE outbox.task SET task_type = 'B' WHERE task_id = 1001`:           tasks,
		`UPDATE outbox.task SET run_at = now() WHERE task_id = 1001`:            tasks,
		`UPDATE outbox.task SET state = 'scheduled' WHERE task_id = 1001`:       letters,
		`SELECT task_id FROM outbox.task WHERE task_id = 1001 FOR UPDATE`:       letters,
		`UPDATE outbox.dead_task SET payload = '{}' WHERE task_id = 1004`:       tasks,
		`DELETE FROM outbox.dead_task WHERE task_id = 1004`:                     letters,
		`DELETE FROM outbox.done_task WHERE task_id = 1006`:                     tasks,
		`INSERT INTO outbox.dead_task SELECT * FROM outbox.dead_task LIMIT 0`:   tasks,
		`INSERT INTO outbox.counter_log VALUES (1, 1, 'A', 'ready')`:            tasks,
		`DELETE FROM outbox.counter_log`:                                        tasks,
		`UPDATE outbox.schedule SET task_type = 'B'`:                            tasks,
		`UPDATE outbox.schedule SET payload = '{}'`:                             tasks,
		`UPDATE outbox.task_type SET max_running = 1`:                           tasks,
		`UPDATE outbox.relay SET alive_until = now()`:                           tasks,
		`DELETE FROM outbox.maintenance`:                                        tasks,
		`INSERT INTO outbox.promote_lock DEFAULT VALUES ON CONFLICT DO NOTHING`: tasks,
		`SELECT setval('outbox.wake', 0)`:                                       tasks,
		`INSERT INTO outbox.migration (version) VALUES (999)`:                   "owner",
		`TRUNCATE outbox.task`:                                                  "owner",

		// Who did what is added to, and changed by nobody but the owner. Who and when cannot be made up but in the tool's own words.
		`INSERT INTO outbox.audit (actor, tool, action) VALUES ('a', 't', 'a') RETURNING entry_id, at`:                                      letters,
		`INSERT INTO outbox.audit (actor, tool, action, at) VALUES ('a', 't', 'a', now())`:                                                  "owner",
		`INSERT INTO outbox.audit (entry_id, actor, tool, action) OVERRIDING SYSTEM VALUE VALUES (1, 'a', 't', 'a') ON CONFLICT DO NOTHING`: "owner",
		`UPDATE outbox.audit SET actor = 'somebody else'`:                                                                                   "owner",
		`DELETE FROM outbox.audit`:  "owner",
		`DELETE FROM outbox.sample`: tasks,
		`INSERT INTO outbox.inbox (source, event_id, keep_until) VALUES ('/s', '1', now()) ON CONFLICT DO NOTHING`: "owner enqueuer worker",
		`SELECT source FROM outbox.inbox`:                                       tasks,
		`DELETE FROM outbox.inbox`:                                              tasks,
		`INSERT INTO outbox.sample VALUES (now(), 1, 1, 1, 1, 1, 1, 1, 1, 'A')`: tasks,

		// The functions, called directly: those that are SECURITY DEFINER most of all.
		`SELECT outbox.cancel_task(1001)`:  letters,
		`SELECT outbox.run_task_now(1007)`: letters,
		`SELECT outbox.claim_task('A', 0::smallint, 0::smallint, 0, 0::smallint, 0, '0', '0', '0')`: tasks,
		`SELECT outbox.claim_tasks('A', 0::smallint, 0::smallint, 0, 0::smallint, 10)`:              tasks,
		`SELECT outbox.claim_group('A', 0::smallint, 0::smallint, 0, 0::smallint, 10, false)`:       tasks,
		`SELECT outbox.claim_member('(0,1)', '0', '0', '0')`:                                        tasks,
		`SELECT outbox.poll(ARRAY['A'], '{}', '{}', '{}', '{}', '{}', '{}', '{}')`:                  tasks,
		`SELECT outbox.finish_tasks('{}', '{}', '{}', '{}')`:                                        tasks,
		`SELECT outbox.complete_task(1001, NULL)`:                                                   tasks,
		`SELECT outbox.end_run(1, 1001)`:                                                            tasks,
		`SELECT outbox.optional_columns(NULL)`:                                                      tasks,
		`SELECT outbox.note_origin('staging')`:                                                      tasks,
		`SELECT outbox.this_database()`:                                                             tasks,
		`SELECT outbox.origin_state('staging')`:                                                     "owner worker viewer operator",
		`SELECT database_id FROM outbox.identity`:                                                   "owner enqueuer worker viewer operator",
		`UPDATE outbox.origin SET environment = 'staging'`:                                          tasks,
		`SELECT outbox.adopt(false, true, 'staging')`:                                               "owner operator",
		`SELECT outbox.take_key('A', 'k', 1)`:                                                       "owner",
		`SELECT outbox.lock_waiting(1001)`:                                                          "owner",
		`SELECT outbox.resolve_key('$payload', '{}')`:                                               "owner",
		`SELECT outbox.check_task(1001)`:                                                            "owner",
		`SELECT outbox.mark_headless('A', 'o')`:                                                     "owner",
		`CREATE TEMPORARY TABLE mine (n int); CREATE TRIGGER t AFTER INSERT ON mine FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_truncated()`: "owner",

		// The schema itself.
		`CREATE TABLE outbox.other ()`:                                     "owner",
		`CREATE FUNCTION outbox.other() RETURNS int LANGUAGE sql RETURN 1`: "owner",
		`ALTER TABLE outbox.task ADD COLUMN other int`:                     "owner",
		`ALTER TABLE outbox.task DISABLE TRIGGER ALL`:                      "owner",
		`DROP TRIGGER task_wake ON outbox.task`:                            "owner",
		`CREATE INDEX ON outbox.task (priority)`:                           "owner",
		`DROP TABLE outbox.slot`:                                           "owner",
		`COMMENT ON TABLE outbox.task IS NULL`:                             "owner",
	} {
		out = append(out, right{statement, may, false, func(ctx context.Context, g *granted, db *sql.DB) error {
			return rolledBack(ctx, db, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, g.sql(statement))
				return err
			})
		}})
	}
	return out
}

func rolledBack(ctx context.Context, db *sql.DB, do func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	return do(tx)
}
