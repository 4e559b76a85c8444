package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// fullDomain has mailboxes that are full at first.
const fullDomain = "full.example"

// sink is a mail service that keeps the mails and delivers nothing. Like a good receiver it
// recognises a mail that it has already. It refuses mails to fullDomain until its mailboxes are
// emptied.
type sink struct {
	server http.Server
	url    string
	takes  time.Duration // for a mail

	mu    sync.Mutex
	full  bool       // the mailboxes at fullDomain
	mails []received // oldest first
}

// received is one mail, as the page shows it.
type received struct {
	To, Subject, Text string
	Key               string // that of idempotencyHeader
	Sender            string // the header User-Agent
	Copies            int    // 2 and more: it was sent again
}

// inbox is the sink's answer to GET.
type inbox struct {
	Full  bool
	Mails []received // newest first
}

// startSink listens on a free port of this machine.
func startSink(takes time.Duration) (*sink, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &sink{url: "http://" + listener.Addr().String(), takes: takes, full: true}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{$}", s.deliver)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(s.inbox()) })
	mux.HandleFunc("POST /mailboxes", s.setFull)
	s.server.Handler = mux
	go s.server.Serve(listener)
	return s, nil
}

func (s *sink) close() { s.server.Close() }

func (s *sink) deliver(w http.ResponseWriter, r *http.Request) {
	m := received{r.PostFormValue("to"), r.PostFormValue("subject"), r.PostFormValue("text"),
		r.Header.Get(idempotencyHeader), r.UserAgent(), 1}
	if wait(r.Context(), s.takes) != nil {
		return // the sender is dead
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.HasSuffix(m.To, "@"+fullDomain) && s.full {
		http.Error(w, "the mailbox is full", http.StatusUnprocessableEntity)
		return
	}
	if i := slices.IndexFunc(s.mails, func(old received) bool { return old.Key == m.Key }); i >= 0 {
		s.mails[i].Copies++
		return
	}
	s.mails = append(s.mails, m)
}

func (s *sink) setFull(_ http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = r.PostFormValue("full") == "true"
}

func (s *sink) inbox() inbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.Clone(s.mails)
	slices.Reverse(list)
	return inbox{s.full, list}
}

// wait returns after d, or with an error as soon as ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
