package outboxamqp_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// staller passes connections on to a broker, and stops reading from its clients when told to.
type staller struct {
	listener net.Listener
	to       string
	held     chan struct{} // gets a value when something of a client is held back
	running  sync.WaitGroup

	mu    sync.Mutex
	going chan struct{} // closed unless stalled
}

func newStaller(t *testing.T, to string) *staller {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &staller{listener: l, to: to, held: make(chan struct{}, 1), going: make(chan struct{})}
	close(s.going)
	s.running.Go(s.accept)
	t.Cleanup(func() {
		s.resume()
		_ = l.Close()
		s.running.Wait()
	})
	return s
}

func (s *staller) address() string { return s.listener.Addr().String() }

func (s *staller) stall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.going = make(chan struct{})
}

func (s *staller) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.going:
	default:
		close(s.going)
	}
}

func (s *staller) accept() {
	for {
		client, err := s.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", s.to)
		if err != nil {
			_ = client.Close()
			continue
		}
		s.running.Go(func() {
			defer client.Close()
			_, _ = io.Copy(client, server)
		})
		s.running.Go(func() {
			defer server.Close()
			s.forward(server, client)
		})
	}
}

func (s *staller) forward(server, client net.Conn) {
	buffer := make([]byte, 4096)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		s.mu.Lock()
		going := s.going
		s.mu.Unlock()
		select {
		case <-going:
		default:
			select {
			case s.held <- struct{}{}:
			default:
			}
			<-going
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}
