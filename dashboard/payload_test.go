package dashboard_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestAPayloadIsChanged(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	const secret = "hunter2"
	state := func(state string) string {
		return fmt.Sprint(db.Int(t, `SELECT min(task_id) FROM outbox.task WHERE state = $1`, state))
	}
	payload := func(id string) string {
		return db.Text(t, `SELECT payload::text FROM (SELECT task_id, payload FROM outbox.task
			UNION ALL SELECT task_id, payload FROM outbox.dead_task) AS t WHERE task_id = $1`, id)
	}
	set := func(id, text string) answer {
		return s.post(t, "set-payload", url.Values{"id": {id}, "payload": {text}}.Encode(),
			"Referer", s.URL+"/outbox/task?id="+id+"&payload=show")
	}
	for _, id := range []string{state("ready"), state("scheduled"), state("waiting"), "900001"} {
		page := s.get(t, "task?id="+id+"&payload=show")
		if page.has(t, 200, "Change it"); page.form("set-payload").Get("id") != id {
			t.Errorf("task %s: the page has no form for its payload: %s", id, page.body)
		}
		set(id, `{"password": "`+secret+`"}`).leads(t, "./task?id="+id+"&n=1&ok=payload-set")
		s.get(t, "task?id="+id+"&n=1&ok=payload-set").
			has(t, 200, "The payload is changed.", "set_payload dashboard")
		if got := payload(id); got != `{"password": "`+secret+`"}` {
			t.Errorf("task %s: the payload is %s", id, got)
		}
		if got, want := s.last(t), `ada@example.com dashboard set_payload "task `+id+`" 1`; got != want {
			t.Errorf("the audit log ends with %s, want %s", got, want)
		}
		s.log.Want(t, 1, `action=set_payload target="task `+id+`" count=1`)
	}

	// What is not changed in the field stays as it is.
	db.Do(t, `UPDATE outbox.dead_task SET payload = $1 WHERE task_id = 900002`,
		"{\"a\": \"\\n x\u202e\u200b\U000e0041\u2028\U0001f4a9\x7f\\\\u202e </textarea><b>\", "+
			"\"n\": 1.50, \"m\": 123456789012345678901234567890, \"deep\": [[], {}]}")
	before := payload("900002")
	text := textarea(s.get(t, "task?id=900002&payload=show"))
	if strings.ContainsAny(text, "\u202e\u200b\u2028\x7f") || !strings.Contains(text, `\u202e`) {
		t.Errorf("the field has characters that cannot be seen: %q", text)
	}
	set("900002", strings.ReplaceAll(text, "\n", "\r\n")).leads(t, "./task?id=900002&n=1&ok=payload-set")
	if got := payload("900002"); got != before {
		t.Errorf("the payload was %s and is %s", before, got)
	}

	// An app that replaced it since the page was loaded is not overwritten.
	form := s.get(t, "task?id=900006&payload=show").form("set-payload")
	db.Do(t, `UPDATE outbox.dead_task SET payload = '"by the app"' WHERE task_id = 900006`)
	form.Set("payload", `"by hand"`)
	s.post(t, "set-payload", form.Encode()).has(t, 409, "The payload has changed since you loaded the page.")
	if got := payload("900006"); got != `"by the app"` {
		t.Errorf("the payload is %s", got)
	}

	last := s.last(t)
	unlock := db.Hold(t, `SELECT FROM outbox.task WHERE task_id = `+state("ready")+` FOR UPDATE`)
	for id, c := range map[string]struct {
		text, says string
		status     int
	}{
		"77777":         {`{}`, "There is no such task", 404},
		"899741":        {`{}`, "There is no such task", 404}, // it has finished
		state("leased"): {`{"password": "` + secret + `"}`, "The task runs", 409},
		state("ready"): {`{"password": "` + secret + `"}`,
			"The task runs, or another transaction has locked it.", 409},
		"900003": {`{"password": "` + secret + `",}`, "not JSON near byte 24", 400},
		"900004": {`{"password": "` + secret + `\u0000"}`, "a NUL, which jsonb cannot hold", 400},
		"900005": {`"` + strings.Repeat(secret, 40_000) + `"`, "280002 bytes, at most 262144", 400},
	} {
		a := set(id, c.text)
		a.has(t, c.status, c.says, "Nothing was changed.")
		if !strings.Contains(a.body, `id="back" href="./task?id=`+id) {
			t.Errorf("task %s: the answer does not lead back: %s", id, a.body)
		}
		if c.status != 404 && textarea(a) != c.text {
			t.Errorf("task %s: the answer has lost the text: %q", id, textarea(a))
		}
	}
	unlock()
	if got := s.last(t); got != last {
		t.Errorf("what is refused is noted: %s", got)
	}
	if log := s.log.String(); strings.Contains(log, secret) {
		t.Errorf("the log has a payload:\n%s", log)
	}
}

func TestAPayloadIsOfferedForChangeWhereThatCanSucceed(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	db.Do(t, `UPDATE outbox.dead_task SET payload = to_jsonb(repeat('x', 70000)) WHERE task_id = 900002`)
	leased := fmt.Sprint(db.Int(t, `SELECT min(task_id) FROM outbox.task WHERE state = 'leased'`))
	for path, why := range map[string]string{"900001": "it is not shown", "900002&payload=show": "it is cut",
		leased + "&payload=show": "it runs", "899741&payload=show": "it has finished"} {
		if a := s.get(t, "task?id="+path); strings.Contains(a.body, "set-payload") {
			t.Errorf("task %s: %s, and there is a form: %s", path, why, a.body)
		}
	}
	for name, access := range map[string]dashboard.Access{"without payloads": dashboard.AccessOperate,
		"a viewer": dashboard.AccessViewPayloads} {
		s := serve(t, db, dashboard.Config{Authorize: as(access)})
		if a := s.get(t, "task?id=900001&payload=show"); strings.Contains(a.body, "set-payload") {
			t.Errorf("%s: there is a form: %s", name, a.body)
		}
		s.post(t, "set-payload", "id=900001&payload={}").has(t, 403, "Your role may not do this.")
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task WHERE payload = '{}'`); n != 0 {
		t.Errorf("%d payloads were changed", n)
	}
}

func TestAPageShowsProgressAndResult(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	id := fmt.Sprint(db.Int(t, `SELECT min(task_id) FROM outbox.task WHERE state = 'leased'`))
	db.Do(t, `UPDATE outbox.relay SET alive_until = now() + interval '1 hour', progress = jsonb_build_object($1::text,
		'{"fraction": 0.4, "message": "400 of <1,000>", "at": "2026-01-01T00:00:00Z"}'::jsonb)`, id)
	s.get(t, "task?id="+id).has(t, 200, "Progress 40 %: 400 of <1,000>")
	done := fmt.Sprint(db.Int(t, `UPDATE outbox.done_task SET result = '{"sum": 42}' WHERE task_id = (
		SELECT min(task_id) FROM outbox.done_task) RETURNING task_id`))
	s.get(t, "task?id="+done+"&payload=show").has(t, 200, `Result { "sum": 42 }`)
	if page := s.get(t, "task?id="+done); strings.Contains(page.body, "sum") {
		t.Error("the result is shown without the payload")
	}
}

// An encoded payload is decoded for those who may see payloads, where the dashboard has its codec. Nobody
// changes it.
func TestAnEncodedPayloadIsShownWithItsCodec(t *testing.T) {
	t.Parallel()
	db, _ := filled(t)
	task := outbox.TaskSpec{Type: "CODED", Payload: map[string]string{"mail": "ada"}, Options: []outbox.Option{
		outbox.Codec(relaytest.Hidden("c")), outbox.Headers(map[string]string{"h": "1"})}}
	relaytest.EnqueueAll(db.DB, task)
	id := db.Text(t, `SELECT task_id FROM outbox.task WHERE task_type = 'CODED'`)
	stored := strings.Trim(db.Text(t, `SELECT payload FROM outbox.task WHERE task_type = 'CODED'`), `"`)
	show := "task?id=" + id + "&payload=show"
	const readable, decoded = `&#34;mail&#34;: &#34;ada&#34;`, "has decoded it"
	for name, c := range map[string]struct {
		codecs []outbox.PayloadCodec
		access dashboard.Access
		has    []string
		not    []string
	}{
		"with it": {[]outbox.PayloadCodec{relaytest.Hidden("other"), relaytest.Hidden("c")}, everything,
			[]string{`"mail": "ada"`, decoded}, []string{stored}},
		"without it": {[]outbox.PayloadCodec{relaytest.Hidden("other")}, everything,
			[]string{stored, `The codec "c" has encoded it, which the dashboard does not have.`}, []string{readable, decoded}},
		"without any": {nil, everything, []string{stored, "It is as it is stored."}, []string{readable}},
		"not allowed": {[]outbox.PayloadCodec{relaytest.Hidden("c")}, dashboard.AccessOperate,
			[]string{"Your role does not show payloads."}, []string{stored, readable}},
	} {
		s := serve(t, db, dashboard.Config{Authorize: as(c.access), Codecs: c.codecs})
		page := s.get(t, show)
		page.has(t, 200, c.has...)
		for _, text := range append(c.not, "Change it") {
			if strings.Contains(page.body, text) {
				t.Errorf("%s: the page has %q: %s", name, text, page.body)
			}
		}
		if c.access == everything {
			file := s.get(t, "task?id="+id+"&payload=file")
			if got := file.body == `{"mail":"ada"}`; got != (name == "with it") || !got && file.body != `"`+stored+`"` {
				t.Errorf("%s: the file is %s", name, file.body)
			}
			s.post(t, "set-payload", url.Values{"id": {id}, "payload": {"{}"}}.Encode(), "Referer", s.URL+"/outbox/"+show).
				has(t, 400, "encoded by an outbox.Codec", "Nothing was changed.")
		}
	}
	if _, err := dashboard.New(db.DB, dashboard.Config{Codecs: []outbox.PayloadCodec{nil}}); err == nil ||
		!strings.Contains(err.Error(), "Config.Codecs: codec 0 is nil") {
		t.Errorf("a nil codec: %v", err)
	}
}
