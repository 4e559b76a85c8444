package pgbouncer

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
)

// front is a proxy on loopback that passes on everything but requests to cancel a statement. It
// answers its client as if the statement were canceled, and ends the connection.
type front struct {
	listener net.Listener
	to       string
	clients  sync.Map // net.Conn by what the client cancels with
}

const (
	cancelCode = 80877102 // in the place of a protocol version
	longest    = 10_000   // startup message, as in PostgreSQL
)

// canceled is PostgreSQL's answer for a canceled statement: the error, and that the transaction has
// failed.
var canceled = func() []byte {
	fields := "SERROR\x00VERROR\x00C57014\x00Mcanceling statement due to user request\x00\x00"
	m := binary.BigEndian.AppendUint32([]byte{'E'}, uint32(4+len(fields)))
	return append(append(m, fields...), 'Z', 0, 0, 0, 5, 'E')
}()

// newFront serves until its listener is closed. A connection ends with its client or its server.
func newFront(to string) (*front, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &front{listener: listener, to: to}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go f.serve(client)
		}
	}()
	return f, nil
}

func (f *front) serve(client net.Conn) {
	defer client.Close()
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
	defer server.Close()
	if _, err := server.Write(first); err != nil {
		return
	}
	go func() {
		f.answer(client, server)
		_ = client.Close() // both ways end together
	}()
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
			f.clients.Store(key, client)
			defer f.clients.Delete(key)
		}
		if _, err := client.Write(message); err != nil {
			return
		}
	}
	_, _ = io.Copy(client, r)
}

// readMessage reads a length, which counts itself, and the message, behind what was read.
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
	if client, ok := f.clients.Load(key); ok {
		_, _ = client.(net.Conn).Write(canceled)
		_ = client.(net.Conn).Close()
	}
}
