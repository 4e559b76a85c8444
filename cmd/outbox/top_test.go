package main

import (
	"context"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"database/sql"

	"github.com/creack/pty"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

var (
	mail = outbox.NewTaskType[struct{}]("MAIL")
	slow = outbox.NewTaskType[struct{}]("A_VERY_LONG_NAME_OF_A_TYPE_THAT_IS_SLOW_AND_WIDER_THAN_ANY_COLUMN")
)

var sequence = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)

func TestTopShowsTypesAndRelaysAndGivesTheTerminalBack(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.relay(t, func(r *handlers.Registry) {
		handlers.Tx(r, mail, func(context.Context, *sql.Tx, *outbox.Task[struct{}]) error { return nil })
		handlers.Leased(r, slow, func(ctx context.Context, _ *outbox.Task[struct{}]) error {
			<-ctx.Done()
			return nil
		})
	})
	s := db.terminal(t, "top", "-every", "100ms")
	s.shows(t, "\x1b[?1049h")
	s.shows(t, "q quits, s sorts (by ready)")
	db.ok(t, "enqueue", slow.Name(), "{}")
	s.shows(t, "1 A_VERY_LONG_NA… ")
	db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT 'MAIL', '{}' FROM generate_series(1, 200)`)
	eventually(t, "a rate is shown", func() bool {
		return regexp.MustCompile(`MAIL {10,}.* [1-9][0-9.]* +0 +`).MatchString(s.text())
	})
	s.shows(t, "DONE/S  FAIL/S  OLDEST\x1b[K")
	s.types(t, "s")
	s.shows(t, "by running")
	if err := pty.Setsize(s.tty, &pty.Winsize{Rows: 6, Cols: 40}); err != nil {
		t.Fatal(err)
	}
	s.types(t, "q")
	if code := s.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	text := s.text()
	if !strings.HasSuffix(text, leaveScreen) {
		t.Errorf("it ends with %q, want %q", text[max(len(text)-60, 0):], leaveScreen)
	}
	for _, line := range regexp.MustCompile(`\r\n|\x1b\[H`).Split(sequence.ReplaceAllString(text, ""), -1) {
		if n := utf8.RuneCountInString(line); n > 80 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
}

func TestTopEndsWithSIGTERM(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	s := db.terminal(t, "top")
	s.shows(t, "q quits")
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := s.end(t); code != 0 || !strings.HasSuffix(s.text(), leaveScreen) {
		t.Errorf("exit code %d, it ends with %q", code, s.text()[max(len(s.text())-60, 0):])
	}
}

func TestTopGoesOnWhenTheDatabaseDoesNotAnswer(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	s := db.terminal(t, "top", "-every", "100ms", "-timeout", "3s")
	s.shows(t, "q quits")
	unlock := db.Hold(t, `LOCK TABLE outbox.counter`)
	s.shows(t, "no answer within 3s")
	unlock()
	eventually(t, "it goes on", func() bool {
		text := s.text()
		return strings.LastIndex(text, "q quits") > strings.LastIndex(text, "no answer")
	})
	s.types(t, "\x03")
	if code := s.end(t); code != 0 || !strings.HasSuffix(s.text(), leaveScreen) {
		t.Errorf("after ctrl-C: exit code %d, the screen is left: %v", code, strings.HasSuffix(s.text(), leaveScreen))
	}
}
