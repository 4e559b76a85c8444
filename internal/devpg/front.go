package devpg

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
)

// front is a proxy on loopback that passes everything on but requests to cancel a statement: it answers as if it were canceled, and ends
// the connection.
type front struct {
	listener net.Listener
	to       string

	mu      sync.Mutex
	closed  bool
	conns   map[net.Conn]bool
	keys    map[string]net.Conn // the clients by what they cancel with
	serving sync.WaitGroup
}

const (
	cancelCode = 80877102 // what a request to cancel has in the place of a protocol version
	longest    = 10_000   // of a startup message, as PostgreSQL has it
)

// canceled is what PostgreSQL says of a statement that was, and that it is ready for others, in a transaction that has failed.
var canceled = func() []byte {
	fields := "SERROR\x00VERROR\x00C57014\x00Mcanceling statement due to user request\x00\x00"
	m := binary.BigEndian.AppendUint32([]byte{'E'}, uint32(4+len(fields)))
	return append(append(m, fields...), 'Z', 0, 0, 0, 5, 'E')
}()

func newFront(to string) (*front, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &front{listener: listener, to: to, conns: map[net.Conn]bool{}, keys: map[string]net.Conn{}}
	f.serving.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			f.serving.Go(func() { f.serve(client) })
		}
	})
	return f, nil
}

func (f *front) serve(client net.Conn) {
	defer f.forget(client)
	if !f.know(client) {
		return
	}
	first, err := readMessage(client, nil) // PgBouncer wants all of it at once
	if err != nil || len(first) < 8 {
		return
	}
	if binary.BigEndian.Uint32(first[4:]) == cancelCode {
		f.cancel(string(first[8:]))
		return
	}
	server, err := net.Dial("tcp4", f.to)
	if err != nil {
		return
	}
	defer f.forget(server)
	if !f.know(server) {
		return
	}
	if _, err := server.Write(first); err != nil {
		return
	}
	f.serving.Go(func() {
		f.answer(client, server)
		_ = client.Close() // both ways end together
	})
	_, _ = io.Copy(server, client)
}

// answer passes on what the server says, and notes the key that it gives the client.
func (f *front) answer(client, server net.Conn) {
	r := bufio.NewReader(server)
	for ready := false; !ready; {
		kind, err := r.ReadByte()
		if err != nil {
			return
		}
		message, err := readMessage(r, []byte{kind})
		if err != nil {
			return
		}
		if ready = kind == 'Z'; kind == 'K' {
			key := string(message[5:])
			f.mu.Lock()
			f.keys[key] = client
			f.mu.Unlock()
			defer func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				delete(f.keys, key)
			}()
		}
		if _, err := client.Write(message); err != nil {
			return
		}
	}
	_, _ = io.Copy(client, r)
}

// readMessage reads a length, which counts itself, and what it says, behind what was read.
func readMessage(r io.Reader, read []byte) ([]byte, error) {
	message := append(read, 0, 0, 0, 0)
	length := message[len(read):]
	if _, err := io.ReadFull(r, length); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length)
	if n < 4 || n > longest {
		return nil, fmt.Errorf("a message of %d bytes", n)
	}
	body := make([]byte, n-4)
	_, err := io.ReadFull(r, body)
	return append(message, body...), err
}

func (f *front) cancel(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if client := f.keys[key]; client != nil {
		_, _ = client.Write(canceled)
		_ = client.Close()
	}
}

// know keeps a connection for close, unless that was called.
func (f *front) know(c net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns[c] = true
	return !f.closed
}

func (f *front) forget(c net.Conn) {
	_ = c.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, c)
}

func (f *front) close() {
	_ = f.listener.Close()
	f.mu.Lock()
	f.closed = true
	for c := range f.conns {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.serving.Wait()
}
