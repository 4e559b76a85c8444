// Package whytest plants the causes for which a task waits, for the tests of the tools that say them.
package whytest

import (
	"database/sql"
	"fmt"
	"slices"
	"testing"

	"github.com/txoutbox/outbox/admin"
)

// Relay is the id of the relay of a planted cause.
const Relay = "aaaaaaaa-0000-4000-8000-000000000000"

// Cause is what holds up task 1, of the type T, once its statements have run after base.
type Cause struct {
	Name, SQL string
	Kind      admin.CauseKind
	Says      string // a part of the text
	Apart     bool   // it holds, or hides others, whatever else does
	Handled   bool   // it holds only beside a handler
}

// base is a relay with a handler and workers, and task 1.
const base = `
INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types, workers)
  VALUES ('` + Relay + `', 'web-1', 7, clock_timestamp() + interval '1 hour', '{T}', 10);
INSERT INTO outbox.task (task_type, payload, unique_key) VALUES ('T', '{"secret": "s3cret"}', 's3cret');`

// running are n runs of a type, of tasks that are there.
func running(taskType string, n int) string {
	return fmt.Sprintf(`WITH added AS (
		INSERT INTO outbox.task (task_type) SELECT '%s' FROM generate_series(1, %d) RETURNING task_id)
		INSERT INTO outbox.running (task_id, token, relay_id)
		SELECT task_id, gen_random_uuid(), '%s' FROM added;`, taskType, n, Relay)
}

// key makes task 1 the last of three of a key.
func key(column string) string {
	return fmt.Sprintf(`DELETE FROM outbox.task;
		INSERT INTO outbox.task (task_id, task_type, %[1]s) OVERRIDING SYSTEM VALUE VALUES (101, 'T', 's3cret');
		INSERT INTO outbox.task (task_id, task_type, %[1]s, priority) OVERRIDING SYSTEM VALUE
			VALUES (-1, 'T', 's3cret', 0), (1, 'T', 's3cret', 1);`, column)
}

// place gives the first of these the place of its key.
const place = `UPDATE outbox.task SET state = 'ready', group_place = 1 WHERE task_id = 101;`

// All are all causes.
func All() []Cause { return slices.Concat(States, Others, Alone) }

// States are causes in the state of the task: one holds at a time.
var States = []Cause{
	{Name: "ready", SQL: `INSERT INTO outbox.task (task_type, priority) SELECT 'T', -1 FROM generate_series(1, 3)`,
		Kind: admin.CauseQueued, Says: "3 tasks of its type are before it", Apart: true},
	{Name: "scheduled", SQL: `UPDATE outbox.task SET state = 'scheduled', run_at = now() + interval '1 hour'`,
		Kind: admin.CauseScheduled, Says: "scheduled"},
	{Name: "retrying", SQL: `UPDATE outbox.task SET state = 'scheduled', attempt = 3, last_error = 'connection refused',
		run_at = now() + interval '1 hour'`, Kind: admin.CauseRetrying, Says: "attempt 3 failed: connection refused"},
	{Name: "throttled", SQL: `UPDATE outbox.task SET state = 'scheduled', attempt = 3, last_error = '429',
		run_at = now() + interval '1 hour', timeline = '[{"event": "throttled", "attempt": 4}]'`,
		Kind: admin.CauseThrottled, Says: "asked to wait: 429"},
	{Name: "unreadable", SQL: `UPDATE outbox.task SET state = 'scheduled', run_at = now() + interval '1 hour',
		last_error = 'relay: the task cannot be read and is put off by 1h0m0s: invalid page'`,
		Kind: admin.CauseUnreadable, Says: "invalid page"},
	{Name: "expired", SQL: `UPDATE outbox.task SET expires_at = now() - interval '1 second'`,
		Kind: admin.CauseExpired, Says: "it has expired: a relay ends it"},
	{Name: "ordered", SQL: key("ordering_key") + `UPDATE outbox.task SET state = 'scheduled', attempt = 1,
		run_at = now() + interval '1 hour' WHERE task_id = 101`,
		Kind: admin.CauseOrdered,
		Says: "behind task 101 of its ordering key, which is retrying; 1 task of the key is before it"},
	{Name: "grouped", SQL: key("group_key") + place,
		Kind: admin.CauseGroup,
		Says: "the places of its group key (1) are taken by task 101; 1 task of the key is before it"},
	{Name: "put off", SQL: `UPDATE outbox.task SET state = 'scheduled', attempt = 1, last_error = 'boom',
		attempted_at = now(), run_at = now() + interval '1 hour',
		timeline = '[{"event": "failed", "attempt": 1, "at": "2001-01-01T00:00:00Z"}]'`,
		Kind: admin.CauseScheduled, Says: "its handler has put it off"},
	{Name: "put off with a reason", SQL: `UPDATE outbox.task SET state = 'scheduled', last_error = 'not yet booked',
		attempted_at = now(), run_at = now() + interval '1 hour'`,
		Kind: admin.CauseScheduled, Says: "its handler has put it off (Snooze, RunAgain): not yet booked"},
	{Name: "put off as a suspect", SQL: `UPDATE outbox.task SET state = 'scheduled', attempt = 1, attempted_at = now(),
		run_at = now() + interval '1 hour', relay_id = gen_random_uuid(),
		timeline = '[{"event": "lost", "attempt": 1, "at": "2026-01-01T00:00:00Z"}]'`,
		Kind: admin.CauseSuspect, Says: "its last run died, so it waits until it may run beside few others"},
	{Name: "suspect", SQL: `UPDATE outbox.task SET attempt = 2, timeline = '[{"event": "lost"}, {"event": "lost"}]'`,
		Kind: admin.CauseSuspect, Says: "its last run died, 2 times in a row"},
}

// Others are causes that hold beside those.
var Others = []Cause{
	{Name: "paused", SQL: `INSERT INTO outbox.task_type (task_type, paused) VALUES ('T', true)
		ON CONFLICT (task_type) DO UPDATE SET paused = true;
		INSERT INTO outbox.audit (actor, tool, action, target) VALUES ('ada', 'cli', 'pause', 'T')`,
		Kind: admin.CausePaused, Says: "its type is paused, by ada at"},
	{Name: "no handler", SQL: `UPDATE outbox.relay SET task_types = '{OTHER}';
		INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
		VALUES (gen_random_uuid(), 'web-9', 7, now() - interval '1 minute', '{T}')`,
		Kind: admin.CauseNoHandler,
		Says: "no living relay has a handler for the type T; the last one with a handler for it was on web-9"},
	{Name: "the limit of the type", SQL: `INSERT INTO outbox.task_type (task_type, max_running) VALUES ('T', 2)
		ON CONFLICT (task_type) DO UPDATE SET max_running = 2;
		UPDATE outbox.relay SET limits = '{"share": 10, "types": {"T": {"all": 2}}}';` + running("T", 2),
		Kind: admin.CauseTypeLimit, Says: "2 tasks of its type run", Handled: true},
	{Name: "the rate", SQL: `INSERT INTO outbox.task_type (task_type, rate, rate_per) VALUES ('T', 1, 3600000000)
		ON CONFLICT (task_type) DO UPDATE SET rate = 1, rate_per = 3600000000;
		INSERT INTO outbox.bucket (task_type, emptied_at) VALUES ('T', clock_timestamp())`,
		Kind: admin.CauseRate, Says: "the rate of its type is used up"},
}

// Alone are causes that are said alone.
var Alone = []Cause{
	{Name: "no relay", SQL: `DELETE FROM outbox.relay`, Kind: admin.CauseNoRelay, Says: "no relay is alive"},
	{Name: "workers", SQL: running("REPORT", 8) + running("MAIL", 2), Kind: admin.CauseWorkers,
		Says: "all workers are busy: 10 of web-1 (8 REPORT, 2 MAIL)"},
	{Name: "the share of a type", SQL: `UPDATE outbox.relay SET limits = '{"share": 9, "types": {}}';` + running("T", 9),
		Kind: admin.CauseWorkers, Says: "all workers are busy: 9 of web-1 (9 T; the last is for other types)"},
	{Name: "a limit that no relay has any more",
		SQL:  `INSERT INTO outbox.task_type (task_type, max_running) VALUES ('T', 2);` + running("T", 2),
		Kind: admin.CauseQueued, Says: "it is the next of its type"},
	{Name: "a place that is to be given", SQL: key("group_key") + place +
		`INSERT INTO outbox.task_type (task_type, max_running_per_key) VALUES ('T', 3)`,
		Kind: admin.CauseGroup, Says: "1 of the places of its group key (3) are taken by task 101"},
	{Name: "the limit of each relay",
		SQL:  `UPDATE outbox.relay SET limits = '{"share": 10, "types": {"T": {"relay": 2}}}';` + running("T", 2),
		Kind: admin.CauseRelayLimit, Says: "as many tasks of its type as it may: 2 in web-1"},
	{Name: "next", SQL: ``, Kind: admin.CauseQueued, Says: "it is the next of its type"},
	{Name: "due", SQL: `UPDATE outbox.task SET state = 'scheduled', run_at = now()`,
		Kind: admin.CauseQueued, Says: "about to make it ready"},
	{Name: "running", SQL: `INSERT INTO outbox.running (task_id, token, relay_id)
		VALUES (1, gen_random_uuid(), '` + Relay + `')`,
		Kind: admin.CauseRunning, Says: "it runs, since"},
	{Name: "leased", SQL: `UPDATE outbox.task SET state = 'leased', lease_token = gen_random_uuid(),
		relay_id = '` + Relay + `'`,
		Kind: admin.CauseRunning, Says: "in relay " + Relay},
	{Name: "lost", SQL: `UPDATE outbox.task SET state = 'leased', lease_token = gen_random_uuid(),
		relay_id = gen_random_uuid()`,
		Kind: admin.CauseLost, Says: "its relay died"},
	{Name: "dead", SQL: `SELECT outbox.bury(to_jsonb(t) ||
		'{"attempt": 5, "reason": "attempts", "last_error": "boom"}', 5, true, 5, '{}', NULL, NULL)
		FROM outbox.task t; DELETE FROM outbox.task`,
		Kind: admin.CauseDead, Says: "a dead letter, with the reason attempts"},
	{Name: "finished", SQL: `SELECT outbox.keep(jsonb_build_array(to_jsonb(t) || '{"outcome": "done"}'),
		3600000000, NULL) FROM outbox.task t; DELETE FROM outbox.task`,
		Kind: admin.CauseFinished, Says: "it is finished: done"},
	{Name: "gone", SQL: `DELETE FROM outbox.task`,
		Kind: admin.CauseGone, Says: "no task has this id: it has finished and is not kept"},
	{Name: "a copy", SQL: `UPDATE outbox.origin SET database_oid = 1, database_name = 'shop', system_id = 1,
		mark = 'another', table_oid = 1`, Kind: admin.CauseCopy, Says: "may be a copy"},
	{Name: "another environment", SQL: `DELETE FROM outbox.relay; UPDATE outbox.origin SET environment = 'production',
		refused_environment = 'staging', refused_at = clock_timestamp()`,
		Kind: admin.CauseEnvironment, Says: "staging"},
}

// Plant makes the causes hold.
func Plant(t testing.TB, db *sql.DB, causes ...Cause) {
	t.Helper()
	statements := []string{base}
	for _, c := range causes {
		statements = append(statements, c.SQL)
	}
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}
