package relay_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// cut is what a commitCutter does to a COMMIT.
type cut int

const (
	loseReply   cut = iota // it is carried out; the connection ends in place of the reply
	loseRequest            // the connection ends before it reaches the server
	loseBoth               // it is sent and the connection ends at once, whatever becomes of it
)

func (c cut) String() string {
	return [...]string{"reply_lost", "request_lost", "cut_after_request"}[c]
}

// commitCutter is a proxy before a server that cuts a connection at a COMMIT.
type commitCutter struct {
	listener net.Listener
	server   string

	mu     sync.Mutex
	how    cut
	after  string // the next COMMIT of a transaction with a statement that contains this is cut; "" is none
	done   int    // how many were cut
	closed bool
	conns  []net.Conn
}

// newCommitCutter returns the cutter and the URL that leads through it. Where the tests run behind a pooler it is before that.
func newCommitCutter(t testing.TB, to string) (*commitCutter, string) {
	t.Helper()
	through, err := pgtest.PoolURL(relaytest.DriverName(), to)
	if err != nil {
		t.Fatal(err)
	}
	before, err := url.Parse(through)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &commitCutter{listener: listener, server: before.Host}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { c.serve(client) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		c.mu.Lock()
		c.closed = true
		for _, conn := range c.conns {
			conn.Close()
		}
		c.mu.Unlock()
		serving.Wait()
	})
	u.Host = listener.Addr().String()
	return c, u.String()
}

func (c *commitCutter) arm(how cut, after string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.how, c.after = how, after
}

func (c *commitCutter) cuts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done
}

// takes reports whether the COMMIT of a transaction with these statements is to be cut, and how.
func (c *commitCutter) takes(statements string) (cut, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.after == "" || !strings.Contains(statements, c.after) {
		return 0, false
	}
	c.after = ""
	c.done++
	return c.how, true
}

func (c *commitCutter) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.server)
	if err != nil {
		return
	}
	defer server.Close()
	c.mu.Lock()
	c.conns = append(c.conns, client, server)
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return
	}
	swallow := make(chan struct{}) // closed: what the server says is not passed on
	replied := make(chan struct{}) // closed when it has said something after that, or nothing more
	go func() {
		defer close(replied)
		buf := make([]byte, 32<<10)
		for {
			n, err := server.Read(buf)
			select {
			case <-swallow:
				return
			default:
			}
			if _, writeErr := client.Write(buf[:n]); err != nil || writeErr != nil {
				client.Close() // and the loop below ends
				return
			}
		}
	}()
	defer func() { <-replied }()
	defer server.Close()
	prepared := map[string]string{} // pgx keeps statements by name
	statements := ""
	for first := true; ; first = false {
		kind, message, err := readMessage(client, first)
		if err != nil {
			return
		}
		body := message[min(5, len(message)):]
		switch kind {
		case 'Q':
			statements += string(body)
		case 'P':
			name, query, _ := bytes.Cut(body, []byte{0})
			prepared[string(name)] = string(query)
		case 'B':
			_, rest, _ := bytes.Cut(body, []byte{0})
			name, _, _ := bytes.Cut(rest, []byte{0})
			statements += prepared[string(name)]
		}
		if kind == 'Q' && commits(string(body)) {
			if how, yes := c.takes(statements); yes {
				if how == loseRequest {
					return
				}
				close(swallow)
				if _, err := server.Write(message); err == nil && how == loseReply {
					<-replied
				} else {
					client.Close()
					_ = server.(*net.TCPConn).CloseWrite() // the server reads the COMMIT, and then the end
					<-replied
				}
				return
			}
			statements = ""
		}
		if _, err := server.Write(message); err != nil {
			return
		}
	}
}

// commits reports whether a message is a COMMIT, or ends with one.
func commits(body string) bool {
	statements := strings.Split(strings.ToLower(strings.TrimRight(body, "\x00")), "; ")
	return statements[len(statements)-1] == "commit"
}

// readMessage reads a whole message of a client; the first one has no kind.
func readMessage(r io.Reader, first bool) (kind byte, message []byte, err error) {
	head := make([]byte, 5)
	if first {
		head = head[1:]
	}
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	length := binary.BigEndian.Uint32(head[len(head)-4:])
	if length < 4 || length > 64<<20 {
		return 0, nil, fmt.Errorf("a message of %d bytes", length)
	}
	message = append(head, make([]byte, length-4)...)
	_, err = io.ReadFull(r, message[len(head):])
	if !first {
		kind = head[0]
	}
	return kind, message, err
}
