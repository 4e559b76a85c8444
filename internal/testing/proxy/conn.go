package proxy

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// conn is a client's connection and the one to the server.
type conn struct {
	client, server net.Conn
	holdBack       func()                               // before what the server says is passed on
	caught         func(statement, before string) *Trap // the trap that catches a statement, or nil

	silenced atomic.Bool
	listened atomic.Bool // LISTEN was sent

	mu      sync.Mutex
	left    int           // bytes that the server may say before the connection is cut; 0 is no limit
	swallow *Trap         // what the server says next is not passed on
	held    chan struct{} // closed when it has said that
	ended   chan struct{} // closed when nothing more is heard of the server
}

func (c *conn) cut() {
	_ = c.client.Close()
	_ = c.server.Close()
}

// cutAfter cuts the connection once the server has said n bytes more: at once, if n is 0.
func (c *conn) cutAfter(n int) {
	if n == 0 {
		c.cut()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = n
}

// silenceLasts is for how long the server's side of a silent connection outlives the client's.
const silenceLasts = time.Minute

// pass passes everything on until one side ends. Of a silent connection neither side hears of the
// other's end.
func (c *conn) pass() {
	var down sync.WaitGroup
	down.Go(func() {
		c.fromServer()
		close(c.ended)
		if !c.silenced.Load() {
			c.cut()
		}
	})
	c.fromClient()
	if !c.silenced.Load() {
		c.cut()
	}
	defer time.AfterFunc(silenceLasts, c.cut).Stop()
	down.Wait()
	c.cut()
}

func (c *conn) fromServer() {
	buf := make([]byte, 32<<10)
	for {
		n, err := c.server.Read(buf)
		if n > 0 && !c.toClient(buf[:n]) {
			return
		}
		if err != nil {
			return
		}
	}
}

// toClient passes on what the server said, and reports whether the connection goes on.
func (c *conn) toClient(said []byte) bool {
	c.holdBack()
	c.mu.Lock()
	trap, silent, left := c.swallow, c.silenced.Load() && c.swallow == nil, c.left
	c.swallow = nil
	if left > 0 {
		c.left = max(0, left-len(said))
	}
	c.mu.Unlock()
	if silent {
		return true
	}
	if trap != nil {
		if trap.How == SilenceReply {
			c.silenced.Store(true) // before anybody acts on it
		}
		if trap.Then != nil {
			trap.Then()
		}
		close(c.held)
		return trap.How == SilenceReply
	}
	if left > 0 && left <= len(said) {
		_, _ = c.client.Write(said[:left])
		return false
	}
	_, err := c.client.Write(said)
	return err == nil
}

// fromClient passes on what the client says, message by message.
func (c *conn) fromClient() {
	in, out := bufio.NewReaderSize(c.client, 64<<10), bufio.NewWriterSize(c.server, 64<<10)
	prepared := map[string]string{} // pgx keeps statements by name
	before := ""
	for first := true; ; first = false {
		kind, message, err := readMessage(in, first)
		if err != nil {
			return
		}
		if c.silenced.Load() {
			continue
		}
		body := message[min(5, len(message)):]
		statement := ""
		switch kind {
		case 'Q':
			var q pgproto3.Query
			_ = q.Decode(body)
			statement = q.String
		case 'P':
			var p pgproto3.Parse
			_ = p.Decode(body)
			prepared[p.Name] = p.Query
		case 'B':
			var b pgproto3.Bind
			_ = b.Decode(body)
			statement = prepared[b.PreparedStatement]
		}
		if statement != "" {
			if strings.HasPrefix(statement, "LISTEN ") {
				c.listened.Store(true)
			}
			if trap := c.caught(statement, before); trap != nil {
				if !c.catch(trap, out, in, message) {
					return
				}
				continue
			}
			before += statement + ";\n"
			if ends(statement) || len(before) > 64<<10 {
				before = ""
			}
		}
		if _, err := out.Write(message); err != nil {
			return
		}
		if in.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return
			}
		}
	}
}

// catch does what the trap says, and reports whether the connection goes on, silent.
func (c *conn) catch(trap *Trap, out *bufio.Writer, in *bufio.Reader, message []byte) bool {
	if trap.How == LoseReply || trap.How == SilenceReply {
		c.mu.Lock()
		c.swallow = trap
		c.mu.Unlock()
	} else if trap.Then != nil {
		trap.Then()
	}
	switch trap.How {
	case LoseRequest:
		return false
	case SilenceRequest:
		c.silenced.Store(true)
		return true
	}
	// The rest of what the client sent with it: the server answers a Sync.
	rest := make([]byte, in.Buffered())
	_, _ = io.ReadFull(in, rest)
	_, err := out.Write(append(message, rest...))
	if err != nil || out.Flush() != nil {
		return false
	}
	if trap.How == LoseBoth {
		_ = c.client.Close()
		_ = c.server.(*net.TCPConn).CloseWrite() // the server reads the message, and then the end
		_, _ = io.Copy(io.Discard, c.server)
		return false
	}
	select {
	case <-c.held:
		return trap.How == SilenceReply
	case <-c.ended:
	case <-time.After(30 * time.Second):
	}
	// The server has not answered either. The trap is told all the same, if the reply has not come
	// meanwhile.
	c.mu.Lock()
	mine := c.swallow == trap
	c.swallow = nil
	c.mu.Unlock()
	if mine && trap.Then != nil {
		trap.Then()
	}
	return false
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
