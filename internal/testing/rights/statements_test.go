package rights_test

// statements are plain SQL, each in a transaction that is rolled back.
func statements() (out []right) {
	for _, s := range []struct{ statement, may string }{
		// Enqueueing.
		{`INSERT INTO outbox.task (task_type, payload) VALUES ('A', '{}') RETURNING task_id`, enqueuers},
		{`WITH a AS (SELECT 1) INSERT INTO outbox.task (task_type, payload) SELECT 'A', '{}' FROM a`, enqueuers},
		{`INSERT INTO outbox.task (task_type, run_at, unique_key) VALUES ('A', now() + interval '1 hour', '$payload')`, enqueuers},
		{`SELECT outbox.enqueue_task('A', '{}')`, enqueuers},
		{`INSERT INTO outbox.keyed_task (task_type, unique_key, on_conflict) VALUES ('A', 'k', 'skip') RETURNING outcome`, enqueuers},
		{`INSERT INTO outbox.task (task_type, state) VALUES ('A', 'scheduled')`, workers},
		{`INSERT INTO outbox.task (task_type, attempt) VALUES ('A', 5)`, workers},
		{`INSERT INTO outbox.task (task_id, task_type) OVERRIDING SYSTEM VALUE VALUES (5000, 'A')`, workers},
		{`INSERT INTO outbox.task (task_type, state, relay_id, lease_token)
			VALUES ('A', 'leased', gen_random_uuid(), gen_random_uuid())`, workers},
		{`INSERT INTO outbox.task (task_type, payload) VALUES ('A', '{}') RETURNING payload`, workers},
		{`INSERT INTO outbox.task (task_id, task_type) OVERRIDING SYSTEM VALUE VALUES (1001, 'A')
			ON CONFLICT (task_id) DO UPDATE SET payload = '{}'`, workers},

		// Reading.
		{`SELECT count(*), max(task_id) FROM outbox.task`, everyone},
		{`SELECT max(version) FROM outbox.migration`, everyone},
		{`SELECT state, task_type, last_error, run_at FROM outbox.task`, viewers},
		{`SELECT payload FROM outbox.task`, workers},
		{`SELECT headers FROM outbox.task`, workers},
		{`SELECT unique_key, ordering_key FROM outbox.task`, workers},
		{`SELECT lease_token FROM outbox.task`, workers},
		{`SELECT * FROM outbox.task`, workers},
		{`SELECT task FROM outbox.task`, workers},
		{`SELECT task_id FROM outbox.task WHERE payload @> '{"secret": 1}'`, workers},
		{`SELECT task_id FROM outbox.task ORDER BY payload`, workers},
		{`SELECT payload FROM outbox.keyed_task`, "owner"},
		{`SELECT task_type, last_error, reason FROM outbox.dead_task`, viewers},
		{`SELECT payload FROM outbox.dead_task`, operators},
		{`SELECT headers FROM outbox.dead_task`, operators},
		{`SELECT unique_key, ordering_key FROM outbox.dead_task`, operators},
		{`SELECT task_type, finished_at FROM outbox.done_task`, viewers},
		{`SELECT payload FROM outbox.done_task`, workers},
		{`SELECT headers FROM outbox.done_task`, workers},
		{`SELECT name, next_at, paused, spec FROM outbox.schedule`, viewers},
		{`SELECT payload FROM outbox.schedule`, workers},
		{`SELECT key FROM outbox.unique_key`, workers},
		{`SELECT ordering_key FROM outbox.headless_key`, workers},
		{`SELECT host, alive_until, task_types FROM outbox.relay`, viewers},
		{`SELECT task_id, started_at FROM outbox.running`, viewers},
		{`SELECT token FROM outbox.running`, workers},
		{`SELECT lease_token FROM outbox.slot`, workers},
		{`SELECT * FROM outbox.counter, outbox.counter_log, outbox.maintenance`, viewers},
		{`SELECT last_value FROM outbox.wake`, workers},
		{`SELECT * FROM outbox.audit, outbox.sample`, viewers},

		// Changing.
		{`DELETE FROM outbox.task WHERE task_id = 1001`, workers},
		{`UPDATE outbox.task SET payload = '{}' WHERE task_id = 1001`, workers},
		{`UPDATE outbox.task SET task_type = 'B' WHERE task_id = 1001`, workers},
		{`UPDATE outbox.task SET run_at = now() WHERE task_id = 1001`, workers},
		{`UPDATE outbox.task SET state = 'scheduled' WHERE task_id = 1001`, operators},
		{`SELECT task_id FROM outbox.task WHERE task_id = 1001 FOR UPDATE`, operators},
		{`UPDATE outbox.dead_task SET payload = '{}' WHERE task_id = 1004`, workers},
		{`DELETE FROM outbox.dead_task WHERE task_id = 1004`, operators},
		{`DELETE FROM outbox.done_task WHERE task_id = 1006`, workers},
		{`INSERT INTO outbox.dead_task SELECT * FROM outbox.dead_task LIMIT 0`, workers},
		{`INSERT INTO outbox.unique_key (task_type, key, task_id) VALUES ('A', 'other', 1001)`, workers},
		{`INSERT INTO outbox.headless_key (task_type, ordering_key) VALUES ('A', 'o')`, workers},
		{`DELETE FROM outbox.running`, workers},
		{`DELETE FROM outbox.cancel`, workers},
		{`INSERT INTO outbox.counter_log VALUES (1, 1, 'A', 'ready')`, workers},
		{`DELETE FROM outbox.counter_log`, workers},
		{`UPDATE outbox.schedule SET task_type = 'B'`, workers},
		{`UPDATE outbox.schedule SET payload = '{}'`, workers},
		{`UPDATE outbox.task_type SET max_running = 1`, workers},
		{`UPDATE outbox.relay SET alive_until = now()`, workers},
		{`DELETE FROM outbox.maintenance`, workers},
		{`INSERT INTO outbox.promote_lock DEFAULT VALUES ON CONFLICT DO NOTHING`, workers},
		{`SELECT setval('outbox.wake', 0)`, workers},
		{`INSERT INTO outbox.migration (version) VALUES (999)`, "owner"},
		{`TRUNCATE outbox.task`, "owner"},

		// The audit log is added to, and changed by its owner only. Actor and time cannot be made up but
		// in the tool's own words.
		{`INSERT INTO outbox.audit (actor, tool, action) VALUES ('a', 't', 'a') RETURNING entry_id, at`, operators},
		{`INSERT INTO outbox.audit (actor, tool, action, at) VALUES ('a', 't', 'a', now())`, "owner"},
		{`INSERT INTO outbox.audit (entry_id, actor, tool, action) OVERRIDING SYSTEM VALUE VALUES (1, 'a', 't', 'a')
			ON CONFLICT DO NOTHING`, "owner"},
		{`UPDATE outbox.audit SET actor = 'somebody else'`, "owner"},
		{`DELETE FROM outbox.audit`, "owner"},
		{`DELETE FROM outbox.sample`, workers},
		{`INSERT INTO outbox.inbox (source, event_id, keep_until) VALUES ('/s', '1', now()) ON CONFLICT DO NOTHING`, enqueuers},
		{`SELECT source FROM outbox.inbox`, workers},
		{`DELETE FROM outbox.inbox`, workers},
		{`INSERT INTO outbox.sample VALUES (now(), 1, 1, 1, 1, 1, 1, 1, 1, 'A')`, workers},

		// The functions, called directly: those that are SECURITY DEFINER most of all.
		{`SELECT outbox.cancel_task(1001)`, operators},
		{`SELECT outbox.run_task_now(1007)`, operators},
		{`SELECT outbox.redrive('{1004}', false, '')`, operators},
		{`SELECT outbox.claim_tasks('A', 0::smallint, 0::smallint, 0, 0::smallint, 10, NULL, '0', '0', '0')`, workers},
		{`SELECT outbox.claim_group('A', 0::smallint, 0::smallint, 0, 0::smallint, 10, NULL, '0', '0', '0', false)`, workers},
		{`SELECT outbox.claim_member('(0,1)', '0', '0', '0')`, workers},
		{`SELECT outbox.poll(ARRAY['A'], '{}', '{}', '{}', '{}', '{}', '{}', '{}')`, workers},
		{`SELECT outbox.finish_tasks('{}', '{}', '{}', '{}')`, workers},
		{`SELECT outbox.complete_task(1001, NULL)`, workers},
		{`SELECT outbox.end_run(1, 1001)`, workers},
		{`SELECT outbox.rest(NULL), outbox.claimed(NULL), outbox.whole(NULL)`, workers},
		{`SELECT outbox.note_origin('staging')`, workers},
		{`SELECT outbox.this_database()`, workers},
		{`SELECT outbox.origin_state('staging')`, viewers},
		{`SELECT database_id FROM outbox.identity`, everyone},
		{`UPDATE outbox.origin SET environment = 'staging'`, workers},
		{`SELECT outbox.adopt(false, true, 'staging')`, "owner operator"},
		{`SELECT outbox.take_key('A', 'k', 1)`, "owner"},
		{`SELECT outbox.lock_waiting(1001)`, "owner"},
		{`SELECT outbox.resolve_key('$payload', '{}')`, "owner"},
		{`SELECT outbox.check_task(1001)`, "owner"},
		{`SELECT outbox.mark_headless('A', 'o')`, "owner"},
		{`CREATE TEMPORARY TABLE mine (n int); CREATE TRIGGER t AFTER INSERT ON mine FOR EACH STATEMENT
			EXECUTE FUNCTION outbox.task_truncated()`, "owner"},

		// The schema itself.
		{`CREATE TABLE outbox.other ()`, "owner"},
		{`CREATE FUNCTION outbox.other() RETURNS int LANGUAGE sql RETURN 1`, "owner"},
		{`ALTER TABLE outbox.task ADD COLUMN other int`, "owner"},
		{`ALTER TABLE outbox.task DISABLE TRIGGER ALL`, "owner"},
		{`DROP TRIGGER task_wake ON outbox.task`, "owner"},
		{`CREATE INDEX ON outbox.task (priority)`, "owner"},
		{`DROP TABLE outbox.slot`, "owner"},
		{`COMMENT ON TABLE outbox.task IS NULL`, "owner"},
	} {
		out = append(out, right{s.statement, s.may, false, func(c call) error {
			return last(c.tx.ExecContext(c.ctx, c.g.sql(s.statement)))
		}})
	}
	return out
}
