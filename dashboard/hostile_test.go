package dashboard_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// hostile are texts that try to become script, markup, a template, or another text than they are.
var hostile = []string{
	"evil\u202egnp.exe \u2066\u2067\u200b\ufeff\u061c",
	`</script><script>window.pwned=1</script>`,
	`"><img src=x onerror="window.pwned=1">`,
	`'><svg/onload=window.pwned=1>`,
	`" autofocus onfocus="window.pwned=1" x="`,
	`' onmouseover='window.pwned=1`,
	`{{.Secrets}} {{printf "%s" .}} ${window.pwned=1} <%= 1 %>`,
	`</title></textarea></select></pre><script>window.pwned=1</script>`,
	`<style>*{display:none}</style><link rel=stylesheet href=//evil.example/x.css>`,
	`<div hx-get="./settings" hx-trigger="load" hx-on:load="window.pwned=1" data-hx-get="/x">`,
	`<meta http-equiv="refresh" content="0;url=//evil.example"><base href="//evil.example/">`,
	`<form action="./bulk" method="post"><button autofocus>`,
	`<template><td id="live" hx-swap-oob="true">x</td></template>`,
	"\U000e0041\ufffd\uffff \U0001f4a9\u0301\u0301\u0301\u0301 a\u00ad\u2028b\u2029c",
	`&lt;script&gt; &amp;amp; &#x3c;script&#x3e; %3Cscript%3E + %2B %00 \u003cscript\u003e`,
	`../../etc/passwd?x=1&y=2#frag;a=b&ok=paused&n=5&name=OTHER`,
}

// haunt writes the texts into all that pages show, and returns the pages that show them.
func haunt(t testing.TB, db *relaytest.Database) (pages []string) {
	t.Helper()
	for i, h := range hostile {
		payload, err := json.Marshal(map[string]any{h: []any{h, map[string]string{"x": h}}})
		if err != nil {
			t.Fatal(err)
		}
		long := h + "\x01\x1b[31m\x7f\r\n" + strings.Repeat(h, 3)
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, headers, unique_key, last_error, attempted_at, attempt)
			VALUES ($1, $2, jsonb_build_object('h', $1::text), $1, $3, now(), 1)`, h, string(payload), long)
		db.Do(t, `INSERT INTO outbox.dead_task (task_id, run_at, created_at, attempted_at, priority, attempt, max_attempts,
			reason, task_type, payload, headers, last_error)
			VALUES ($1, now(), now(), now(), 0, 10, 10, 'attempts', $2, $3, jsonb_build_object('h', $2::text), $4)`,
			5_000_000+i, h, string(payload), long)
		db.Do(t, `INSERT INTO outbox.schedule (name, next_at, task_type, payload, spec, timing, definition)
			VALUES ($1, now(), $1, '{}', $1, 'x', 'x')`, h)
		db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
			VALUES (gen_random_uuid(), $1, 1, now() + (($2 % 2) * 2 - 1) * interval '1 hour', ARRAY[$1])`, h, i)
		db.Do(t, `INSERT INTO outbox.audit (actor, tool, action, target) VALUES ($1, 'x', left($1, 60), $1)`, h)
		q := url.QueryEscape(h)
		pages = append(pages, fmt.Sprintf("task?id=%d&payload=show", i+1),
			fmt.Sprintf("task?id=%d&payload=show", 5_000_000+i),
			"type?name="+q, "type?state=dead&name="+q, "dead?type="+q+"&error="+q, "bulk?do=purge&type="+q+"&error="+q)
	}
	db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id) SELECT task_id, gen_random_uuid(), relay.relay_id
		FROM outbox.task JOIN outbox.relay ON task_types = ARRAY[task_type]`)
	// A huge payload, and a deep one.
	db.Do(t, `INSERT INTO outbox.task (task_id, task_type, payload) OVERRIDING SYSTEM VALUE VALUES
		(7000001, 'HUGE', jsonb_build_object('text', repeat('<b onclick=window.pwned=1>', 100000))),
		(7000002, 'HUGE', (repeat('[', 900) || '"<script>window.pwned=1</script>"' || repeat(']', 900))::jsonb)`)
	return append(pages, "", "dead", "schedules", "relays", "audit", "cancel?id=1", "task?id=7000001&payload=show",
		"task?id=7000002&payload=show")
}

func TestHostileTextsStayTexts(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	pages := haunt(t, db)
	s := serve(t, db, dashboard.Config{Authorize: func(*http.Request) dashboard.User {
		return dashboard.User{Name: hostile[1], Access: everything}
	}})
	values := regexp.MustCompile(` value="[^"]*"`)
	bad := regexp.MustCompile(`<script>|<img|<svg/|<style|<base|<b |<button autofocus|<template|<meta http-equiv|` +
		"\u202e|\u2066|\u200b|\x1b|\x01")
	for _, path := range pages {
		a := s.get(t, path)
		a.has(t, 200)
		body := values.ReplaceAllString(a.body, "") // a form sends names as they are
		if at := bad.FindStringIndex(body); at != nil {
			t.Errorf("%s has in it: …%q", path, body[max(at[0]-80, 0):min(at[0]+80, len(body))])
		}
		if len(a.body) > 1<<20 {
			t.Errorf("%s has %d bytes", path, len(a.body))
		}
		if q, ok := strings.CutPrefix(path, "type?name="); ok { // the header of a redirect is a line
			name, _ := url.QueryUnescape(q)
			a := s.post(t, "pause", "name="+q)
			if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) { // PauseType knows no such type
				a.has(t, 400)
			} else if a.status != 303 || !strings.HasPrefix(a.header.Get("Location"), "./type?") {
				t.Errorf("pause %q: got %d %q", name, a.status, a.header.Get("Location"))
			}
		}
	}
	s.get(t, "task?id=7000001&payload=show").has(t, 200, "These are the first 64 kB of 2,600,012 bytes")
	if n := len(s.get(t, "task?id=7000001&payload=file").body); n != 2600012 {
		t.Errorf("the file has %d bytes", n)
	}
	s.get(t, "type?name="+url.QueryEscape(hostile[0])).has(t, 200, `evil\u202egnp.exe \u2066\u2067\u200b\ufeff\u061c`)
}
