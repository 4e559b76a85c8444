package relay_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/smtp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// mailServer takes mail by SMTP once it is up, and until then says that it is not available. Each
// mail has its task in the subject.
type mailServer struct {
	net.Listener
	up      atomic.Bool
	refused atomic.Int64
	mails   chan string
}

func newMailServer(t *testing.T) *mailServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &mailServer{Listener: l, mails: make(chan string, 1000)}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(conn)
		}
	}()
	return s
}

func (s *mailServer) serve(conn net.Conn) {
	defer conn.Close()
	if !s.up.Load() {
		s.refused.Add(1)
		fmt.Fprint(conn, "421 not available\r\n")
		return
	}
	fmt.Fprint(conn, "220 ready\r\n")
	data, lines := false, bufio.NewScanner(conn)
	for lines.Scan() {
		line := lines.Text()
		subject, isSubject := strings.CutPrefix(line, "Subject: ")
		switch {
		case data && line == ".":
			data = false
		case isSubject:
			s.mails <- subject
			continue
		case data:
			continue
		case line == "DATA":
			data = true
			fmt.Fprint(conn, "354 go on\r\n")
			continue
		case line == "QUIT":
			fmt.Fprint(conn, "221 bye\r\n")
			return
		}
		fmt.Fprint(conn, "250 ok\r\n")
	}
}

func (s *mailServer) send(taskID int64) error {
	return smtp.SendMail(s.Addr().String(), nil, "app@example.com", []string{"user@example.com"}, fmt.Appendf(nil, "Subject: %d\r\n\r\nHello", taskID))
}

// The clock is moved by moving the due times of the tasks. The handlers have no options.
func TestMailArrivesAfterAnOutageOfSixHours(t *testing.T) {
	t.Parallel()
	db, server := newDatabase(t), newMailServer(t)
	reg := handlers.New()
	registerTx(reg, typeTx, func(_ context.Context, _ *sql.Tx, task *outbox.Task[payload]) error { return server.send(task.ID) })
	handlers.Leased(reg, typeLeased, func(_ context.Context, task *outbox.Task[payload]) error { return server.send(task.ID) })
	const each = 20
	db.Enqueue(t, "TX", each)
	db.Enqueue(t, "LEASED", each)
	var passed time.Duration
	for passed < 4*24*time.Hour {
		server.up.Store(passed > 6*time.Hour)
		once(t, db, reg, relay.Config{})
		if db.Int(t, `SELECT count(*) FROM outbox.task`) == 0 {
			break
		}
		step := max(time.Second, passed/2)
		passed += step
		db.Do(t, `UPDATE outbox.task SET run_at = run_at - $1::bigint * interval '1 microsecond'`, step.Microseconds())
	}
	db.wantRows(t, 0, `outbox.dead_task`)
	close(server.mails)
	arrived := map[string]int{}
	for subject := range server.mails {
		arrived[subject]++
	}
	for id, n := range arrived {
		if n != 1 {
			t.Errorf("the mail of task %s arrived %d times", id, n)
		}
	}
	if len(arrived) != 2*each {
		t.Errorf("%d mails arrived, want %d", len(arrived), 2*each)
	}
	if server.refused.Load() < 2*each*5 {
		t.Errorf("the server refused only %d mails: the outage was none", server.refused.Load())
	}
	t.Logf("all mail arrived within %v, after %d refusals", passed.Round(time.Minute), server.refused.Load())
}
