package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"strings"
	"sync"
	"time"

	"github.com/emersion/go-smtp"
)

// maxMails bounds the inbox, which is in memory; older mails make room.
const maxMails = 10_000

// fullDomain has mailboxes that are full at first.
const fullDomain = "full.example"

// sink is the mail server for whoever has none: it keeps what it is sent and delivers nothing. Like a good
// receiver it knows a mail that it has already, by its idempotency header. It refuses mails to the addresses at fullDomain for good until their
// mailboxes are emptied.
type sink struct {
	server   *smtp.Server
	listener net.Listener
	served   chan error

	mu    sync.Mutex
	full  bool        // the mailboxes at fullDomain
	mails []*received // oldest first
	byKey map[string]*received
}

// received is one mail, as the page and the API show it.
type received struct {
	To             string    `json:"to"`
	Subject        string    `json:"subject"`
	Text           string    `json:"text"`
	IdempotencyKey string    `json:"idempotency_key"`
	MessageID      string    `json:"message_id"`
	ReceivedAt     time.Time `json:"received_at"`
	Copies         int       `json:"copies"` // 2 and more: it was sent again
}

// newSink listens on a free port of the loopback interface.
func newSink(logger *slog.Logger) (*sink, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("mail sink: %w", err)
	}
	s := &sink{listener: listener, served: make(chan error, 1), full: true, byKey: map[string]*received{}}
	s.server = smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) {
		return &sinkSession{sink: s}, nil
	}))
	s.server.Domain = "localhost"
	s.server.MaxMessageBytes = 1 << 20
	s.server.MaxRecipients = 100
	s.server.ReadTimeout = time.Minute
	s.server.WriteTimeout = time.Minute
	s.server.EnableSMTPUTF8 = true
	s.server.ErrorLog = log.New(io.Discard, "", 0) // clients that die in the middle of a mail
	if logger != nil {
		s.server.ErrorLog = slog.NewLogLogger(logger.Handler(), slog.LevelDebug)
	}
	go func() { s.served <- s.server.Serve(listener) }()
	return s, nil
}

func (s *sink) address() string { return s.listener.Addr().String() }

// close waits a moment for mails that are being received.
func (s *sink) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := s.server.Shutdown(ctx)
	s.listener.Close() // if it was so soon that Serve did not know it yet
	<-s.served
	return err
}

// newest returns up to limit mails, the newest first.
func (s *sink) newest(limit int) []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []received{}
	for i := len(s.mails) - 1; i >= 0 && len(list) < limit; i-- {
		list = append(list, *s.mails[i])
	}
	return list
}

func (s *sink) add(m *received) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.byKey[m.IdempotencyKey]; old != nil {
		old.Copies++
		return
	}
	if len(s.mails) == maxMails {
		delete(s.byKey, s.mails[0].IdempotencyKey)
		s.mails = s.mails[1:]
	}
	s.mails = append(s.mails, m)
	if m.IdempotencyKey != "" {
		s.byKey[m.IdempotencyKey] = m
	}
}

func (s *sink) setFull(full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = full
}

func (s *sink) isFull() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.full
}

// sinkSession is one SMTP connection.
type sinkSession struct {
	sink *sink
	to   []string
}

func (s *sinkSession) Mail(string, *smtp.MailOptions) error { return nil }

func (s *sinkSession) Rcpt(to string, _ *smtp.RcptOptions) error {
	if strings.HasSuffix(strings.ToLower(to), "@"+fullDomain) && s.sink.isFull() {
		return &smtp.SMTPError{Code: 552, EnhancedCode: smtp.EnhancedCode{5, 2, 2}, Message: "mailbox is full"}
	}
	s.to = append(s.to, to)
	return nil
}

func (s *sinkSession) Data(r io.Reader) error {
	letter, err := mail.ReadMessage(r)
	if err != nil {
		return &smtp.SMTPError{Code: 554, EnhancedCode: smtp.EnhancedCode{5, 6, 0}, Message: "this is not a mail"}
	}
	body := letter.Body
	if strings.EqualFold(letter.Header.Get("Content-Transfer-Encoding"), "quoted-printable") {
		body = quotedprintable.NewReader(body)
	}
	text, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	subject := letter.Header.Get("Subject")
	if decoded, err := new(mime.WordDecoder).DecodeHeader(subject); err == nil {
		subject = decoded
	}
	s.sink.add(&received{
		To:             strings.Join(s.to, ", "),
		Subject:        subject,
		Text:           strings.ReplaceAll(strings.TrimSpace(string(text)), "\r\n", "\n"),
		IdempotencyKey: letter.Header.Get(idempotencyHeader),
		MessageID:      letter.Header.Get("Message-ID"),
		ReceivedAt:     time.Now(),
		Copies:         1,
	})
	return nil
}

func (s *sinkSession) Reset()        { s.to = nil }
func (s *sinkSession) Logout() error { return nil }
