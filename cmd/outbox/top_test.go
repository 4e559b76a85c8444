package main

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/creack/pty"
)

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
