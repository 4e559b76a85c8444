//go:build unix

package main

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
)

// sink is an HTTP server that counts the calls with each idempotency key.
type sink struct {
	url   string
	close func()

	mu    sync.Mutex
	calls map[string]int
}

func newSink() *sink {
	s := &sink{calls: map[string]int{}}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls[r.Header.Get("Idempotency-Key")]++
	}))
	s.url, s.close = server.URL, server.Close
	return s
}

func (s *sink) counted() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.calls)
}
