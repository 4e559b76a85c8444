package main

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"
)

func TestEachCommandThatDestroysAsks(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "x", 1, 1)
	db.schedule(t, "nightly")
	db.ok(t, "enqueue", "MAIL", "{}")
	db.finish(t, "KEPT", 11, 1)
	answers := func(args, question, answer string, code int) {
		t.Helper()
		s := db.terminal(t, strings.Fields(args)...)
		s.shows(t, question+"? [y/N] ")
		s.types(t, answer)
		got := s.end(t)
		said := code == exitOK || answer == "\x03" || strings.Contains(s.text(), "nothing was done")
		if got != code || !said {
			t.Errorf("%s, %q: exit code %d, want %d: %s", args, answer, got, code, s.text())
		}
	}
	for args, question := range map[string]string{
		"dead purge -all":          "Delete 1 dead letter (all)",
		"history purge -all":       "Delete 1 finished task (all)",
		"dead redrive -all":        "Redrive 1 dead letter (all)",
		"tasks cancel 1":           "Cancel 1 task (1)",
		"schedules remove nightly": "Remove the schedule nightly",
		"roles apply":              "PUBLIC",
	} {
		answers(args, question, "n\n", exitFailed)
		db.steps(t, step{args, exitUsage, "Say --yes, as there is no terminal"})
	}
	for _, answer := range []string{"\n", "yikes\n", "\x04", "\x03"} {
		answers("dead purge -type MAIL", "Delete 1 dead letter (type MAIL)", answer, exitFailed)
	}
	db.is(t, `SELECT concat_ws(' ', (SELECT count(*) FROM outbox.dead_task), (SELECT count(*) FROM outbox.task),
		(SELECT count(*) FROM outbox.schedule), (SELECT count(*) FROM outbox.done_task))`, "1 1 1 1")
	answers("dead purge -type MAIL", "Delete 1 dead letter (type MAIL)", "y\n", exitOK)
	answers("schedules remove nightly", "Remove the schedule nightly", "YES\n", exitOK)
	db.is(t, `SELECT (SELECT count(*) FROM outbox.dead_task) + (SELECT count(*) FROM outbox.schedule)`, "0")
}

func TestCtrlCEndsALongPurgeWithAnExactCount(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "no such mailbox", 1, 3000)
	s := db.terminal(t, "dead", "purge", "-all", "-yes", "-rate", "50")
	s.shows(t, " of 3,000 purged")
	s.types(t, "\x03")
	if code := s.end(t); code != exitFailed {
		t.Errorf("exit code %d, want 1", code)
	}
	gone := db.Text(t, `SELECT 3000 - count(*) FROM outbox.dead_task`)
	text := s.text()
	if !strings.Contains(text, gone+" of 3,000 dead letters purged") || !strings.Contains(text, "outbox: interrupted") {
		t.Errorf("%s are gone: %q", gone, text)
	}
	db.is(t, `SELECT sum(count) FROM outbox.audit WHERE action = 'purge'`, gone)
}

func TestTopShowsTypesAndRelaysAndGivesTheTerminalBack(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.relay(t)
	s := db.terminal(t, "top", "-every", "100ms", "-timeout", "3s")
	s.shows(t, enterScreen)
	s.shows(t, "ctrl-C ends")
	db.ok(t, "enqueue", slow, "{}")
	s.shows(t, "1 A_VERY_LONG_NA… ")
	db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT 'MAIL', '{}' FROM generate_series(1, 200)`)
	rate := regexp.MustCompile(`MAIL {10,}.* [1-9][0-9.]* +0 +`)
	eventually(t, "a rate is shown", func() bool { return rate.MatchString(s.text()) })
	s.shows(t, "DONE/S  FAIL/S  OLDEST\x1b[K")
	unlock := db.Hold(t, `LOCK TABLE outbox.counter`)
	s.shows(t, "no answer within 3s")
	unlock()
	eventually(t, "it goes on", func() bool {
		text := s.text()
		return strings.LastIndex(text, "ctrl-C ends") > strings.LastIndex(text, "no answer")
	})
	if err := pty.Setsize(s.tty, &pty.Winsize{Rows: 6, Cols: 40}); err != nil {
		t.Fatal(err)
	}
	s.types(t, "\x03")
	if code, text := s.end(t), s.text(); code != exitOK || !strings.HasSuffix(text, leaveScreen) {
		t.Errorf("exit code %d, it ends with %q, want %q", code, text[max(len(text)-60, 0):], leaveScreen)
	}
	shown := strings.ReplaceAll(s.text(), "\x1b[H", "\r\n")
	shown = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`).ReplaceAllString(shown, "")
	for line := range strings.SplitSeq(shown, "\r\n") {
		if n := utf8.RuneCountInString(line); n > 80 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
}

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

func TestTextIsFitForATerminal(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain ünïcode 日本": "plain ünïcode 日本", "": "", "a\nb\tc\r": `a\nb\tc\r`, "\x1b[2J\x07": `\x1b[2J\a`,
		"a\u202eb": `a\u202eb`, "\u009b2J": `\u009b2J`, "\xff\x9b": `\xff\x9b`, "\U000e0041": `\U000e0041`,
		"\x7f": `\x7f`, "a\u00a0b": `a\u00a0b`,
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestJSONMeansTheSameWhenItIsFitForATerminal(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"\x1b[2J\u009b\x7f", "\u202e\U000e0041\U0010ffff 日本", "a\nb\t\"\\", "\u2028\u00a0"} {
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		cleaned := cleanJSON(text)
		var got string
		if err := json.Unmarshal(cleaned, &got); err != nil || got != s {
			t.Errorf("%s: got %q, %v, want %q", cleaned, got, err, s)
		}
		if c := clean(string(cleaned)); c != string(cleaned) {
			t.Errorf("not fit for a terminal: %q", cleaned)
		}
	}
}

func TestAgesAreShort(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"0s": -time.Hour, "0.4s": 400 * time.Millisecond, "0.1s": time.Microsecond, "12s": 12*time.Second + 999*time.Millisecond,
		"3m12s": 3*time.Minute + 12*time.Second, "5h03m": 5*time.Hour + 3*time.Minute + 59*time.Second, "3d04h": 76 * time.Hour,
	} {
		if got := age(d); got != want {
			t.Errorf("age(%v) = %q, want %q", d, got, want)
		}
	}
	if got := count(1234567, "task") + ", " + count(1, "task"); got != "1,234,567 tasks, 1 task" {
		t.Errorf("got %q", got)
	}
}

func TestAPasswordThatIsNotEscapedIsMisread(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]bool{
		"postgres://a:b/c@db/shop": true, "postgres://a:b?c@db/shop": true, "postgres://a:b#c@db/shop": true,
		"postgres://a:12/c@db/shop": true, "postgres://a:b@db/shop": false, "postgres://a:b%2Fc@db/shop": false,
		"postgres://db:5432/shop?user=a@corp": false, "postgres://a@db/shop": false, "host=db password=a/b@c": false,
	} {
		if got := misread(dsn); got != want {
			t.Errorf("%s: got %v, want %v", dsn, got, want)
		}
	}
}

func TestAnErrorIsCutInTheMiddle(t *testing.T) {
	t.Parallel()
	long := "dead: mail to user 501: " + strings.Repeat("ä", 60) + " refuses the recipient: 552 5.2.2 mailbox is full"
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"boom\nat main.go:1", "boom"},
		{strings.Repeat("ä", 80), strings.Repeat("ä", 80)},
		{strings.Repeat("ä", 81), strings.Repeat("ä", 29) + "…" + strings.Repeat("ä", 50)},
		{long + "\nmore", "dead: mail to user 501: äääää…" + "ä refuses the recipient: 552 5.2.2 mailbox is full"},
	} {
		if got := cutError(c.in); got != c.want {
			t.Errorf("%q becomes %q, want %q", c.in, got, c.want)
		}
	}
}
