package dashboardtest

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// Hostile are texts that try to become script, markup, a template, or another text than they are.
// Each sets the page's flag pwned if its script runs.
var Hostile = []string{
	`<script>window.pwned=1</script>`,
	`</script><script>window.pwned=1</script>`,
	`"><img src=x onerror="window.pwned=1">`,
	`'><svg/onload=window.pwned=1>`,
	`javascript:window.pwned=1`,
	`" autofocus onfocus="window.pwned=1" x="`,
	`' onmouseover='window.pwned=1`,
	`<a href="javascript:window.pwned=1" id="find">click</a>`,
	`{{.Secrets}} {{printf "%s" .}} ${window.pwned=1} <%= 1 %>`,
	`</title></textarea></select></pre><script>window.pwned=1</script>`,
	`<style>*{display:none}</style><link rel=stylesheet href=//evil.example/x.css>`,
	`<div hx-get="./settings" hx-trigger="load" hx-on:load="window.pwned=1" data-hx-get="/x">`,
	`<meta http-equiv="refresh" content="0;url=//evil.example"><base href="//evil.example/">`,
	`<form action="./bulk" method="post"><button autofocus>`,
	`<template><td id="live" hx-swap-oob="true">x</td></template>`,
	"evil\u202egnp.exe \u2066\u2067\u200b\ufeff\u061c",
	"\U000e0041\ufffd\uffff \U0001f4a9\u0301\u0301\u0301\u0301 a\u00ad\u2028b\u2029c",
	`&lt;script&gt; &amp;amp; &#x3c;script&#x3e; %3Cscript%3E + %2B %00 \u003cscript\u003e`,
	`../../etc/passwd?x=1&y=2#frag;a=b`,
	`ok=paused&n=5&name=OTHER`,
	strings.Repeat("W", 120),
	`-- '; DROP TABLE outbox.task; --`,
}

// Haunt writes the texts into all that pages show: types, payloads, headers, keys, errors, hosts,
// ids, names of schedules, and the audit log.
func Haunt(t testing.TB, db *sql.DB) {
	t.Helper()
	for i, h := range Hostile {
		name := h
		if len(name) > 120 {
			name = name[:120]
		}
		payload, err := json.Marshal(map[string]any{h: []any{h, map[string]string{"x": h}}})
		if err != nil {
			t.Fatal(err)
		}
		long := h + "\x01\x1b[31m\x7f\r\n" + strings.Repeat(h, 3)
		execute(t, db, `INSERT INTO outbox.task (task_type, payload, headers, unique_key, ordering_key, last_error, attempted_at, attempt) VALUES ($1, $2, jsonb_build_object('h', $3::text), $4, NULL, $5, now(), 1)`, name, string(payload), h, name, long)
		execute(t, db, `INSERT INTO outbox.dead_task (task_id, run_at, created_at, attempted_at, priority, attempt, max_attempts, reason, task_type, payload, headers, last_error)
			VALUES ($1, now(), now(), now(), 0, 10, 10, 'attempts', $2, $3, jsonb_build_object('h', $4::text), $5)`, 5_000_000+i, name, string(payload), h, long)
		execute(t, db, `INSERT INTO outbox.schedule (name, next_at, task_type, payload, spec, timing, definition) VALUES ($1, now(), $1, '{}', $2, 'x', 'x')`, name, h)
		execute(t, db, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES (gen_random_uuid(), $1, 1, now() + (($3 % 2) * 2 - 1) * interval '1 hour', ARRAY[$2])`, h, name, i)
		execute(t, db, `INSERT INTO outbox.audit (actor, tool, action, target) VALUES ($1, $2, $2, $3)`, h, strings.ToValidUTF8(h[:min(len(h), 60)], ""), h)
		execute(t, db, `INSERT INTO outbox.task_type (task_type, paused) VALUES ($1, $2)`, name, i%3 == 0)
	}
	execute(t, db, `INSERT INTO outbox.running (task_id, token, relay_id) SELECT task_id, gen_random_uuid(), r.relay_id FROM outbox.task t JOIN LATERAL (SELECT relay_id FROM outbox.relay r WHERE r.task_types = ARRAY[t.task_type] LIMIT 1) r ON true`)
	// A huge payload, a deep one, and one with a long key.
	execute(t, db, `INSERT INTO outbox.task (task_id, task_type, payload) OVERRIDING SYSTEM VALUE VALUES
		(7000001, 'HUGE', jsonb_build_object('text', repeat('<b onclick=window.pwned=1>', 100000))),
		(7000002, 'HUGE', (repeat('[', 900) || '"<script>window.pwned=1</script>"' || repeat(']', 900))::jsonb),
		(7000003, 'HUGE', jsonb_build_object(repeat('</pre>', 5000), 1)), (7000004, 'HUGE', '"</script>"'), (7000005, 'HUGE', 'null')`)
}

// HauntedPages are all pages that show the texts, by the texts.
func HauntedPages(t testing.TB, db *sql.DB) (out []string) {
	t.Helper()
	rows, err := db.Query(`SELECT task_id, task_type FROM outbox.task WHERE task_type <> 'HUGE' UNION ALL SELECT task_id, task_type FROM outbox.dead_task`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	out = []string{"", "dead", "schedules", "relays", "audit"}
	for rows.Next() {
		var id int64
		var name string
		if err := rows.Scan(&id, &name); err != nil {
			t.Fatal(err)
		}
		q := url.QueryEscape(name)
		out = append(out, fmt.Sprintf("task?id=%d&payload=show", id), "type?name="+q, "type?state=dead&name="+q, "dead?type="+q+"&error="+q, "bulk?do=purge&type="+q+"&error="+q)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	var first int64
	if err := db.QueryRow(`SELECT min(task_id) FROM outbox.task`).Scan(&first); err != nil {
		t.Fatal(err)
	}
	out = append(out, fmt.Sprintf("cancel?id=%d", first))
	for id := 7000001; id <= 7000005; id++ {
		out = append(out, fmt.Sprintf("task?id=%d&payload=show", id))
	}
	return out
}
