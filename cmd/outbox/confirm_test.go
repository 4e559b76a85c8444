package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
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

func TestWhatDestroysIsConfirmedOnATerminal(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	for answer, code := range map[string]int{"y\n": exitOK, "YES\n": exitOK, "n\n": exitFailed, "\n": exitFailed, "yikes\n": exitFailed, "\x04": exitFailed, "\x03": exitFailed} {
		db.Do(t, `DELETE FROM outbox.dead_task`)
		db.bury(t, "MAIL", "no such mailbox", 1, 12)
		s := db.terminal(t, "dead", "purge", "-type", "MAIL")
		s.shows(t, "Delete 12 dead letters (type MAIL)? [y/N] ")
		db.is(t, `SELECT count(*) FROM outbox.dead_task`, "12")
		s.types(t, answer)
		left := "12"
		if code == exitOK {
			left = "0"
		}
		if got := s.end(t); got != code || code != exitOK && answer != "\x03" && !strings.Contains(s.text(), "nothing was done") {
			t.Errorf("%q: exit code %d, want %d: %s", answer, got, code, s.text())
		}
		db.is(t, `SELECT count(*) FROM outbox.dead_task`, left)
	}
}

func TestEachCommandThatDestroysAsks(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "x", 1, 1)
	db.schedule(t, "nightly")
	db.ok(t, "enqueue", "MAIL", "{}")
	for args, question := range map[string]string{
		"dead purge -all":          "Delete 1 dead letter (all)? [y/N] ",
		"dead redrive -all":        "Redrive 1 dead letter (all)? [y/N] ",
		"tasks cancel 1":           "Cancel 1 task (1)? [y/N] ",
		"schedules remove nightly": "Remove the schedule nightly? [y/N] ",
		"roles apply":              "PUBLIC? [y/N] ",
	} {
		s := db.terminal(t, strings.Fields(args)...)
		s.shows(t, question)
		s.types(t, "n\n")
		if code := s.end(t); code != exitFailed {
			t.Errorf("%s: exit code %d", args, code)
		}
		if r := db.run(t, strings.Fields(args)...); r.code != exitUsage || r.out != "" || !strings.Contains(r.err, "Say --yes, as there is no terminal") {
			t.Errorf("%s without a terminal: got %+v", args, r)
		}
	}
	db.is(t, `SELECT concat_ws(' ', (SELECT count(*) FROM outbox.dead_task), (SELECT count(*) FROM outbox.task), (SELECT count(*) FROM outbox.schedule))`, "1 1 1")
}

func TestCtrlCEndsALongPurgeWithAnExactCount(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "no such mailbox", 1, 3000)
	s := db.terminal(t, "dead", "purge", "-all", "-yes", "-rate", "50")
	eventually(t, "some are purged", func() bool { return db.Text(t, `SELECT count(*) < 2950 FROM outbox.dead_task`) == "true" })
	s.shows(t, " of 3,000 purged")
	s.types(t, "\x03")
	if code := s.end(t); code != exitFailed {
		t.Errorf("exit code %d, want 1", code)
	}
	gone := db.Text(t, `SELECT 3000 - count(*) FROM outbox.dead_task`)
	if text := s.text(); !strings.Contains(text, gone+" of 3,000 dead letters purged") || !strings.Contains(text, "outbox: interrupted") {
		t.Errorf("%s are gone: %q", gone, text)
	}
	db.is(t, `SELECT sum(count) FROM outbox.audit WHERE action = 'purge'`, gone)
	// The same by SIGTERM, without a terminal, as JSON.
	c := command(t, environment(db.URL), "dead", "redrive", "-all", "-yes", "-rate", "50", "-json")
	done := begin(t, c)
	eventually(t, "some are redriven", func() bool { return db.Text(t, `SELECT count(*) > 0 FROM outbox.task`) == "true" })
	c.Process.Signal(syscall.SIGTERM)
	r := <-done
	if moved := db.Text(t, `SELECT count(*) FROM outbox.task`); r.code != exitFailed || !strings.Contains(r.out, `"redriven": `+moved+",\n") {
		t.Errorf("%s tasks are there: %+v", moved, r)
	}
}
