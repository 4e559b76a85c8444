package main

import (
	"io"
	"log"
	"net"
	"net/mail"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/emersion/go-smtp"
)

// fullDomain has mailboxes that are full at first.
const fullDomain = "full.example"

// sink is a mail server that keeps what it is sent and delivers nothing. Like a good receiver it
// knows a mail that it has already. It refuses mails to fullDomain until its mailboxes are emptied.
type sink struct {
	server   *smtp.Server
	listener net.Listener

	full atomic.Bool // the mailboxes at fullDomain

	mu    sync.Mutex
	mails []received // oldest first
}

// received is one mail, as the page shows it.
type received struct {
	To, Subject, Text string
	key               string // that of idempotencyHeader
	copies            int    // 2 and more: it was sent again
}

// startSink listens on a free port of this machine.
func startSink() (*sink, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &sink{listener: listener}
	s.full.Store(true)
	s.server = smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return &session{sink: s}, nil }))
	s.server.EnableSMTPUTF8 = true
	s.server.ErrorLog = log.New(io.Discard, "", 0) // clients that die in the middle of a mail
	go s.server.Serve(listener)
	return s, nil
}

func (s *sink) address() string { return s.listener.Addr().String() }

func (s *sink) close() {
	s.server.Close()
	s.listener.Close() // if it was so soon that Serve did not know it yet
}

// all returns the mails, the newest first.
func (s *sink) all() []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.Clone(s.mails)
	slices.Reverse(list)
	return list
}

func (s *sink) add(m received) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.mails, func(old received) bool { return old.key == m.key }); i >= 0 {
		s.mails[i].copies++
		return
	}
	s.mails = append(s.mails, m)
}

// session is one SMTP connection.
type session struct {
	sink *sink
	to   string
}

func (s *session) Mail(string, *smtp.MailOptions) error { return nil }

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	if strings.HasSuffix(to, "@"+fullDomain) && s.sink.full.Load() {
		return &smtp.SMTPError{Code: 552, EnhancedCode: smtp.EnhancedCode{5, 2, 2}, Message: "mailbox is full"}
	}
	s.to = to
	return nil
}

func (s *session) Data(r io.Reader) error {
	letter, err := mail.ReadMessage(r)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(letter.Body)
	if err != nil {
		return err
	}
	s.sink.add(received{To: s.to, Subject: letter.Header.Get("Subject"), Text: string(text),
		key: letter.Header.Get(idempotencyHeader), copies: 1})
	return nil
}

func (s *session) Reset()        { s.to = "" }
func (s *session) Logout() error { return nil }
