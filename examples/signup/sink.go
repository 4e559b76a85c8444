package main

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// fullDomain has mailboxes that are full at first.
const fullDomain = "full.example"

// sink is a mail service that keeps what it is sent and delivers nothing. Like a good receiver it
// knows a mail that it has already. It refuses mails to fullDomain until its mailboxes are emptied.
type sink struct {
	server http.Server
	url    string

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
	s := &sink{url: "http://" + listener.Addr().String()}
	s.full.Store(true)
	s.server.Handler = s
	go s.server.Serve(listener)
	return s, nil
}

func (s *sink) close() { s.server.Close() }

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to := r.PostFormValue("to")
	if strings.HasSuffix(to, "@"+fullDomain) && s.full.Load() {
		http.Error(w, "the mailbox is full", http.StatusUnprocessableEntity)
		return
	}
	s.add(received{To: to, Subject: r.PostFormValue("subject"), Text: r.PostFormValue("text"),
		key: r.Header.Get(idempotencyHeader), copies: 1})
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
