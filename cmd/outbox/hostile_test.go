package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// hostile has what a terminal acts on: colours, the title, the screen, a hyperlink, C1, bidi, tags,
// a line that looks like the command's.
const hostile = "x\x1b[2J\x1b]0;owned\x07\u009b31m\r\nTASK  FAKE\u202egpj.exe\u2066\u200b\U000e0041\x7f\tend"

func TestHostileTextDoesNotReachTheTerminalRaw(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	// The columns refuse what ASCII calls control characters in names, and nothing else.
	name := "x\u009b31m\u202egpj\u2066\u200b\U000e0041"
	db.Do(t, `ALTER TABLE outbox.task DISABLE TRIGGER USER`)
	db.Do(t, `ALTER TABLE outbox.dead_task DISABLE TRIGGER USER`)
	db.bury(t, name, hostile, 1001, 1)
	payload, _ := json.Marshal(map[string]string{hostile: hostile})
	db.Do(t, `UPDATE outbox.dead_task SET payload = $1, headers = $1`, string(payload))
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
		SELECT gen_random_uuid(), $1, 1, now() + interval '1 hour', ARRAY[$2]`, hostile, name)
	db.Do(t, `INSERT INTO outbox.schedule (name, task_type, payload, spec, timing, definition, next_at)
		VALUES ($1, $1, '{}', $2, 'x', 'x', now())`, "n\u202egpj\u2066", hostile)
	db.ok(t, "enqueue", "MAIL", string(payload), "-actor", hostile, "-unique", hostile, "-header", "h="+hostile)
	db.Do(t, `UPDATE outbox.task SET last_error = $1`, hostile)
	id := db.Text(t, `SELECT task_id FROM outbox.task`)
	runs := [][]string{
		{"types"}, {"relays"}, {"top"}, {"schedules"}, {"audit"}, {"dead", "list"}, {"dead", "show", "1001", "-payload"},
		{"tasks", "list", "-type", "MAIL"}, {"tasks", "show", id, "-payload"}, {"pause", name}, {"pause", hostile},
		{"dead", "list", "-type", hostile}, {"dead", "list", "-after", hostile}, {"dead", "redrive", "-error", hostile},
		{"dead", "purge", "-type", name}, {"tasks", "cancel", hostile}, {hostile}, {"enqueue", hostile, "{}"},
		{"schedules", "remove", "n\u202egpj\u2066"}, {"schedules", "pause", hostile}, {"stats", "-schema", hostile},
	}
	for _, args := range runs {
		for _, more := range [][]string{nil, {"-json"}} {
			r := db.run(t, slices.Concat(args, more)...)
			if len(args) > 2 && args[1] == "show" && (r.code != 0 || !strings.Contains(r.out, "owned")) {
				t.Errorf("%q: got %+v", args, r)
			}
			for line := range strings.SplitSeq(r.out+r.err, "\n") {
				if clean(line) != line {
					t.Errorf("%q %v: %q", args, more, line)
				}
			}
		}
	}
	var found struct {
		LastError string `json:"last_error"`
	}
	if db.json(t, &found, "dead", "show", "1001"); found.LastError != hostile {
		t.Errorf("JSON has %q, want %q", found.LastError, hostile)
	}
	s := db.terminal(t, "top")
	s.shows(t, "ctrl-C ends")
	s.types(t, "\x03")
	s.end(t)
	text := s.text()
	for _, allowed := range []string{enterScreen, leaveScreen, "\x1b[H", "\x1b[K", "\x1b[J", "\r\n", "^C"} {
		text = strings.ReplaceAll(text, allowed, "")
	}
	if clean(text) != text {
		t.Errorf("top: %q", text)
	}
}
