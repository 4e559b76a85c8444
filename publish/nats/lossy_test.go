package outboxnats_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/forwardtest"
)

// lossy passes on what the client sends, and drops all acknowledgements while deaf.
type lossy struct {
	mu   sync.Mutex
	deaf bool
}

func (l *lossy) set(deaf bool) { l.mu.Lock(); defer l.mu.Unlock(); l.deaf = deaf }

func (l *lossy) listen(t *testing.T, to string) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	forwardtest.Must(t, err)
	var group sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); group.Wait() })
	group.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = client.Close()
				continue
			}
			group.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() })
			group.Go(func() {
				defer client.Close()
				buffer := make([]byte, 1<<16)
				for {
					n, err := server.Read(buffer)
					l.mu.Lock()
					drop := l.deaf
					l.mu.Unlock()
					if err != nil || drop { // the connection breaks in the middle of the acknowledgement
						_ = server.Close()
						return
					}
					if _, err := client.Write(buffer[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	return "nats://" + listener.Addr().String()
}

// The acknowledgement of an event is lost with its connection: it is published again, and stored
// once.
func TestALostAcknowledgementStoresNothingTwice(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	b.stream(nil)
	l := &lossy{}
	p := connect(t, l.listen(t, strings.TrimPrefix(b.url(), "nats://")))
	ready(t, p)
	l.set(true)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	wantUnavailable(t, p.Publish(ctx, []*forward.Event{event("1")}))
	if got := len(b.messages()); got != 1 {
		t.Fatalf("%d messages after a lost acknowledgement, want 1", got)
	}
	l.set(false)
	ready(t, p)
	if errs := p.Publish(t.Context(), []*forward.Event{event("1"), event("2")}); errs != nil {
		t.Fatal(errs)
	}
	if got := len(b.messages()); got != 2 {
		t.Errorf("%d messages, want 2", got)
	}
}
