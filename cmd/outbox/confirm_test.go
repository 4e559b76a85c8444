package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"
)

// session is the command on a terminal.
type session struct {
	cmd  *exec.Cmd
	tty  *os.File
	mu   sync.Mutex
	seen bytes.Buffer
	read chan struct{} // closed at the end of the output
}

// terminal starts the command on a terminal of 80 columns.
func (db *testDB) terminal(t *testing.T, args ...string) *session {
	t.Helper()
	return onTerminal(t, command(t, environment(db.URL), args...))
}

func onTerminal(t *testing.T, c *exec.Cmd) *session {
	t.Helper()
	tty, err := pty.StartWithSize(c, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		t.Fatal(err)
	}
	s := &session{cmd: c, tty: tty, read: make(chan struct{})}
	go func() {
		defer close(s.read)
		for b := make([]byte, 4096); ; {
			n, err := tty.Read(b)
			s.mu.Lock()
			s.seen.Write(b[:n])
			s.mu.Unlock()
			if err != nil { // EIO: the command has ended
				return
			}
		}
	}()
	t.Cleanup(func() { tty.Close() })
	return s
}

func (s *session) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.String()
}

func (s *session) shows(t *testing.T, text string) {
	t.Helper()
	eventually(t, text+" is shown", func() bool { return strings.Contains(s.text(), text) })
}

func (s *session) types(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(s.tty, text); err != nil {
		t.Fatal(err)
	}
}

// end waits for the command's end and returns its exit code.
func (s *session) end(t *testing.T) int {
	t.Helper()
	err := s.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	<-s.read
	return s.cmd.ProcessState.ExitCode()
}

func TestEachCommandThatDestroysAsks(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "x", 1, 1)
	db.schedule(t, "nightly")
	db.ok(t, "enqueue", "MAIL", "{}")
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
		(SELECT count(*) FROM outbox.schedule))`, "1 1 1")
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
