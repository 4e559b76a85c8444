//go:build unix

package main

import (
	"net"
	"net/http"
	"sync"
)

// sink is an HTTP server that counts the calls with each idempotency key.
type sink struct {
	server *http.Server
	url    string

	mu    sync.Mutex
	calls map[string]int
}

func newSink() (*sink, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &sink{url: "http://" + l.Addr().String(), calls: map[string]int{}}
	s.server = &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls[r.Header.Get("Idempotency-Key")]++
	})}
	go func() { _ = s.server.Serve(l) }()
	return s, nil
}

func (s *sink) close() { _ = s.server.Close() }
