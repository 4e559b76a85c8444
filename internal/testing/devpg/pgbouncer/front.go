package pgbouncer

import (
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/jackc/pgx/v5/pgproto3"
)

// front is a proxy on loopback that passes on everything but requests to cancel a statement. It
// answers its client as if the statement were canceled, and ends the connection.
type front struct {
	listener net.Listener
	to       string
	clients  sync.Map // net.Conn by what the client cancels with
}

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
	first, err := pgproto3.NewBackend(client, nil).ReceiveStartupMessage()
	if err != nil {
		return
	}
	if c, ok := first.(*pgproto3.CancelRequest); ok {
		f.cancel(fmt.Sprint(c.ProcessID, c.SecretKey))
		return
	}
	server, err := net.Dial("tcp4", f.to)
	if err != nil {
		return
	}
	defer server.Close()
	if send(server, first) != nil {
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
	said := pgproto3.NewFrontend(server, nil)
	for ready := false; !ready; { // then the server has said all, until it is asked
		message, err := said.Receive()
		if err != nil {
			return
		}
		switch m := message.(type) {
		case *pgproto3.BackendKeyData:
			key := fmt.Sprint(m.ProcessID, m.SecretKey)
			f.clients.Store(key, client)
			defer f.clients.Delete(key)
		case *pgproto3.ReadyForQuery:
			ready = true
		}
		if send(client, message) != nil {
			return
		}
	}
	_, _ = io.Copy(client, server)
}

// cancel answers as PostgreSQL does for a canceled statement: the error, and that the transaction
// has failed.
func (f *front) cancel(key string) {
	client, ok := f.clients.Load(key)
	if !ok {
		return
	}
	conn := client.(net.Conn)
	_ = send(conn,
		&pgproto3.ErrorResponse{Severity: "ERROR", Code: "57014", Message: "canceling statement due to user request"},
		&pgproto3.ReadyForQuery{TxStatus: 'E'})
	_ = conn.Close()
}

func send(to io.Writer, messages ...pgproto3.Message) (err error) {
	var text []byte
	for _, m := range messages {
		if text, err = m.Encode(text); err != nil {
			return err
		}
	}
	_, err = to.Write(text)
	return err
}
