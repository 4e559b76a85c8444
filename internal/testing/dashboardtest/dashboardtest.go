// Package dashboardtest is what the tests of the dashboard by HTTP and those in a browser share:
// the contents of an outbox.
package dashboardtest

import (
	"database/sql"
	"testing"
)

// Fill makes an outbox as an app may have it: types at work, one that is paused, one whose mails
// cannot be sent, relays, schedules, and an hour of samples.
func Fill(t testing.TB, db *sql.DB) {
	t.Helper()
	const (
		alive = "'0197a1f2-7c11-7a3e-9a55-1f0c2d3e4f50'"
		other = "'0197a1f2-8d22-7b4f-8b66-2a1d3e4f5061'"
		gone  = "'0197a1e0-1a00-7000-8000-00000000dead'"
	)
	execute(t, db, `INSERT INTO outbox.relay (relay_id, host, pid, started_at, alive_until, task_types, workers, connections) VALUES
		(`+alive+`, 'web-1.fra', 4711, now() - interval '9 hours', now() + interval '1 hour', ARRAY['SEND_WELCOME', 'RESIZE_IMAGE', 'SYNC_CRM', 'GRANT_CREDIT', 'REINDEX_SEARCH', 'DAILY_REPORT'], 20, 22),
		(`+other+`, 'web-2.fra', 4090, now() - interval '31 minutes', now() + interval '1 hour', ARRAY['SEND_WELCOME', 'RESIZE_IMAGE', 'SYNC_CRM', 'GRANT_CREDIT', 'REINDEX_SEARCH', 'DAILY_REPORT'], 20, 22),
		(`+gone+`, 'web-0.fra', 3999, now() - interval '2 days', now() - interval '40 seconds', ARRAY['RESIZE_IMAGE'], 20, 22)`)
	execute(t, db, `INSERT INTO outbox.task (task_type, payload, created_at, run_at) SELECT 'SEND_WELCOME', jsonb_build_object('user_id', n), now() - n * interval '200 milliseconds', now() - n * interval '200 milliseconds' FROM generate_series(1, 120) n`)
	execute(t, db, `INSERT INTO outbox.task (task_type, payload, created_at, run_at) SELECT 'SYNC_CRM', jsonb_build_object('account', n), now() - interval '3 hours' + n * interval '1 second', now() - interval '3 hours' + n * interval '1 second' FROM generate_series(1, 1843) n`)
	execute(t, db, `INSERT INTO outbox.task (task_type, payload, created_at, run_at) SELECT 'GRANT_CREDIT', '{"cents": 500}', now() - n * interval '1 second', now() - n * interval '1 second' FROM generate_series(1, 12) n`)
	execute(t, db, `INSERT INTO outbox.task (task_type, payload, run_at, created_at) SELECT 'REINDEX_SEARCH', '{}', now() + n * interval '10 minutes', now() - interval '1 hour' FROM generate_series(1, 36) n`)
	execute(t, db, `INSERT INTO outbox.task (task_type, payload, ordering_key) SELECT 'LEDGER', '{"entry": 1}', 'account ' || n % 4 FROM generate_series(1, 60) n`)
	execute(t, db, `INSERT INTO outbox.task (task_type, payload, state, relay_id, lease_token, attempt, attempted_at, created_at, run_at)
		SELECT 'RESIZE_IMAGE', jsonb_build_object('image', n), 'leased', CASE WHEN n < 8 THEN `+alive+` WHEN n < 13 THEN `+other+` ELSE `+gone+` END::uuid, gen_random_uuid(), 1,
		       now() - n * interval '3 seconds', now() - interval '2 minutes', now() - interval '2 minutes' FROM generate_series(1, 16) n`)
	execute(t, db, `INSERT INTO outbox.task (task_type, payload, run_at, created_at, attempted_at, attempt, last_error, timeline) SELECT 'SEND_WELCOME', jsonb_build_object('user_id', 9000 + n), now() + n * interval '20 seconds',
		now() - interval '4 minutes', now() - n * interval '5 seconds', 3, 'smtp: 421 4.3.2 mx.example.com: service not available',
		(SELECT jsonb_agg(jsonb_build_object('event', CASE a WHEN 2 THEN 'lost' ELSE 'failed' END, 'attempt', a, 'at', now() - n * interval '5 seconds' - (3 - a) * interval '70 seconds', 'relay', `+alive+`, 'us', 213000,
		        'error', CASE WHEN a <> 2 THEN 'smtp: 421 4.3.2 mx.example.com: service not available' END)) FROM generate_series(1, 3) a)
		FROM generate_series(1, 9) n`)
	// One that failed six times, died, was redriven and then succeeded.
	execute(t, db, `INSERT INTO outbox.done_task (task_id, task_type, payload, run_at, created_at, attempted_at, finished_at, keep_until, priority, attempt, timeline)
		SELECT 899741, 'SEND_WELCOME', '{"user_id": 8123}', now() - interval '20 minutes', now() - interval '3 hours', now() - interval '20 minutes', now() - interval '20 minutes', now() + interval '7 days', 0, 1,
		       jsonb_agg(jsonb_build_object('event', 'failed', 'attempt', a, 'at', now() - interval '3 hours' + 3 ^ (a - 1) * interval '1 second', 'relay', `+gone+`, 'us', 5100000,
		         'error', 'smtp: dial tcp 192.0.2.25:25: i/o timeout', 'reason', CASE a WHEN 6 THEN 'attempts' ELSE '' END) ORDER BY a)
		       || jsonb_build_object('event', 'redriven', 'at', now() - interval '20 minutes 1 second', 'by', 'grace@example.com')
		       || jsonb_build_object('event', 'throttled', 'attempt', 1, 'at', now() - interval '20 minutes', 'last', now() - interval '19 minutes', 'times', 7,
		         'error', 'retry after 10s: 421 4.7.0 too many messages') FROM generate_series(1, 6) a`)
	execute(t, db, `INSERT INTO outbox.running (task_id, token, relay_id, started_at) SELECT task_id, gen_random_uuid(), `+alive+`, now() - interval '2 seconds' FROM outbox.task WHERE task_type = 'GRANT_CREDIT' LIMIT 5`)
	Bury(t, db, "SEND_WELCOME", "attempts", "smtp: 550 5.1.1 <nobody@exmaple.com>: recipient address rejected: user unknown", 900001, 37)
	Bury(t, db, "SEND_WELCOME", "handler", "welcome: user 8123 has no address", 900101, 3)
	Bury(t, db, "RESIZE_IMAGE", "attempts", "resize: decode upload/2026/11/IMG_2231.heic: image: unknown format", 900201, 11)
	Bury(t, db, "RESIZE_IMAGE", "lost_connections", "relay: ten runs of this task lost their connection to PostgreSQL", 900301, 2)
	execute(t, db, `INSERT INTO outbox.task_type (task_type, paused, max_running, rate, rate_per) VALUES ('SYNC_CRM', true, 4, 100, 60000000), ('RESIZE_IMAGE', false, 16, NULL, NULL)`)
	execute(t, db, `INSERT INTO outbox.schedule (name, next_at, last_at, created_at, paused, catch_up, task_type, payload, spec, timing, definition) VALUES
		('daily report', now() + interval '5 hours', now() - interval '19 hours', now() - interval '90 days', false, 'once', 'DAILY_REPORT', '{}', '0 8 * * *', 'x', 'x'),
		('reindex search', now() + interval '7 minutes', now() - interval '53 minutes', now() - interval '90 days', false, 'all', 'REINDEX_SEARCH', '{}', 'every 1h', 'x', 'x'),
		('sync crm', now() + interval '2 minutes', now() - interval '3 hours', now() - interval '90 days', true, 'once', 'SYNC_CRM', '{}', '*/5 * * * *', 'x', 'x')`)
	execute(t, db, `INSERT INTO outbox.audit (at, actor, tool, action, target, count) VALUES
		(now() - interval '2 days', 'grace@example.com', 'outbox', 'purge', 'of type RESIZE_IMAGE, dead for more than 30 days', 1204),
		(now() - interval '3 hours', 'ada@example.com', 'dashboard', 'pause', 'SYNC_CRM', 1),
		(now() - interval '20 minutes', 'grace@example.com', 'dashboard', 'redrive', 'task 899741', 1)`)
	// An hour of samples in front of what is there now.
	execute(t, db, `INSERT INTO outbox.sample (at, ready, scheduled, leased, waiting, dead, finished, failed, oldest_ready, task_type)
		SELECT now() - (60 - m) * interval '1 minute', r, 5, 8, 0, d, f, x, 0, t FROM generate_series(0, 59) m, LATERAL (VALUES
			('SEND_WELCOME', (120 + 90 * sin(m / 6.0) + m % 7 * 6)::bigint, CASE WHEN m > 40 THEN (m - 40) * 2 ELSE 0 END, 0, (m * 14 + CASE WHEN m > 38 THEN (m - 38) * 22 ELSE 0 END)::bigint),
			('RESIZE_IMAGE', (40 + 30 * cos(m / 9.0))::bigint, 13, 0, m * 2),
			('SYNC_CRM', (m * m * 0.51)::bigint, 0, 0, 0),
			('GRANT_CREDIT', (12 + m % 5)::bigint, 0, 0, 0),
			('', (172 + 120 * sin(m / 6.0) + m % 7 * 6 + m * m * 0.51)::bigint, CASE WHEN m > 40 THEN 13 + (m - 40) * 2 ELSE 13 END, 0, (m * 16 + CASE WHEN m > 38 THEN (m - 38) * 22 ELSE 0 END)::bigint)
		) AS s (t, r, d, f, x)`)
	execute(t, db, `UPDATE outbox.sample s SET finished = (SELECT sum(1100 + 260 * sin(k / 5.0) + k % 3 * 40 - CASE WHEN k > 40 THEN 300 ELSE 0 END) * CASE s.task_type WHEN '' THEN 1 WHEN 'SEND_WELCOME' THEN 0.62 WHEN 'RESIZE_IMAGE' THEN 0.2 WHEN 'GRANT_CREDIT' THEN 0.18 ELSE 0 END
		FROM generate_series(0, 60 - (extract(epoch FROM now() - s.at) / 60)::int) k)::bigint`)
	// What is finished and what failed by now, so that the present goes on from the samples.
	execute(t, db, `INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
		SELECT 0, finished + (CASE task_type WHEN 'SEND_WELCOME' THEN 500 WHEN 'SYNC_CRM' THEN 0 ELSE 150 END), task_type, 'ready' FROM outbox.sample s WHERE task_type <> '' AND at = (SELECT max(at) FROM outbox.sample)
		UNION ALL SELECT failed + 9, 0, task_type, 'failed' FROM outbox.sample s WHERE task_type <> '' AND at = (SELECT max(at) FROM outbox.sample)`)
}

func execute(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// Bury writes n dead letters of a type, with ids from first on.
func Bury(t testing.TB, db *sql.DB, taskType, reason, text string, first, n int) {
	t.Helper()
	execute(t, db, `INSERT INTO outbox.dead_task (task_id, run_at, created_at, attempted_at, died_at, priority, attempt, max_attempts, reason, task_type, payload, headers, last_error)
		SELECT i, now() - interval '30 minutes', now() - interval '2 hours', now() - (i - $4::int) * interval '67 seconds' - interval '9 seconds', now() - (i - $4::int) * interval '67 seconds' - interval '5 seconds',
		       0, 10, 10, $2, $1, jsonb_build_object('user_id', i, 'email', 'nobody@exmaple.com', 'locale', 'de'), '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}', $3
		  FROM generate_series($4::int, $4::int + $5::int - 1) i`, taskType, reason, text, first, n)
}
