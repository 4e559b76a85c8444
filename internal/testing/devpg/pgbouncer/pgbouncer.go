// Package pgbouncer runs a PgBouncer before a server, in transaction mode unless it is asked for
// another.
package pgbouncer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgurl"
	"github.com/txoutbox/outbox/internal/testing/devpg/watched"
)

// Pooler is a running PgBouncer. Its methods are safe for concurrent use.
type Pooler struct {
	dir     *watched.Dir
	process *watched.Process
	address string
	mode    string
	front   *front // nil if it needs none
}

// config is what lib/pq and pgx need. server_round_robin makes the test harder: a client's
// transactions go to the server's sessions in turn, so what is left in one is missed in the next.
const config = `[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = md5
auth_file = %s
pool_mode = %s
ignore_startup_parameters = extra_float_digits
server_round_robin = 1
default_pool_size = 60
max_client_conn = 4000
server_idle_timeout = 5
log_connections = 0
log_disconnections = 0
`

// Option changes how a PgBouncer is started.
type Option func(*Pooler)

// Mode is its pool_mode, in place of transaction.
func Mode(mode string) Option { return func(p *Pooler) { p.mode = mode } }

// Start starts a PgBouncer for the server's administrator and any database. Its program is found on
// PATH, in /usr/sbin or in /usr/local/sbin. Like a server it runs as another user than root, and
// ends when this process does. The caller must call Close.
func Start(ctx context.Context, server *url.URL, opts ...Option) (*Pooler, error) {
	bin, err := find()
	if err != nil {
		return nil, err
	}
	dir, err := watched.NewDir(false)
	if err != nil {
		return nil, err
	}
	p := &Pooler{dir: dir, mode: "transaction"}
	for _, o := range opts {
		o(p)
	}
	for range 20 {
		if err = p.start(ctx, bin, server); err == nil || !strings.Contains(err.Error(), "ddress already in use") {
			break
		}
	}
	if err == nil && failsOnCancel(ctx, bin) {
		p.front, err = newFront(p.address)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", bin, err), p.Close())
	}
	return p, nil
}

func find() (string, error) {
	for _, place := range []string{"pgbouncer", "/usr/sbin/pgbouncer", "/usr/local/sbin/pgbouncer"} {
		if path, err := exec.LookPath(place); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", errors.New("no program pgbouncer on PATH or in /usr/sbin: install the package pgbouncer")
}

// failsOnCancel is true for PgBouncer 1.18, which Debian 12 has, to 1.20. They may end with "server
// in bad state: 11" when a statement is canceled and its client goes (pgbouncer/pgbouncer#822).
func failsOnCancel(ctx context.Context, bin string) bool {
	said, _ := exec.CommandContext(ctx, bin, "--version").Output()
	return regexp.MustCompile(`^PgBouncer 1\.(1\d|20)\.`).Match(said)
}

// start starts it on a free port and waits until it answers.
func (p *Pooler) start(ctx context.Context, bin string, server *url.URL) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	port, err := pgurl.FreePort()
	if err != nil {
		return err
	}
	p.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	password, _ := server.User.Password()
	quote := strings.NewReplacer(`"`, `""`)
	users, err := p.dir.WriteFile("users", fmt.Sprintf("\"%s\" \"%s\"\n",
		quote.Replace(server.User.Username()), quote.Replace(password)))
	if err != nil {
		return err
	}
	serverPort := server.Port()
	if serverPort == "" {
		serverPort = "5432"
	}
	file, err := p.dir.WriteFile("pgbouncer.ini", fmt.Sprintf(config, server.Hostname(), serverPort, port, users, p.mode))
	if err != nil {
		return err
	}
	if p.process, err = p.dir.Spawn(p.log(), bin, file); err != nil {
		return err
	}
	if _, err := pgurl.Await(ctx, p.URL(server), p.process.Ended); err != nil {
		p.process.Stop()
		said, _ := os.ReadFile(p.log())
		return fmt.Errorf("%w\n%s", err, said)
	}
	return nil
}

func (p *Pooler) log() string { return filepath.Join(p.dir.Path, "log") }

// URL is that of one of the server's databases, by way of the pooler.
func (p *Pooler) URL(direct *url.URL) *url.URL {
	u := *direct
	u.Host = p.address
	if p.front != nil {
		u.Host = p.front.listener.Addr().String()
	}
	query := u.Query()
	query.Set("sslmode", "disable")
	u.RawQuery = query.Encode()
	return &u
}

// Close ends it and what is open through it. The error says if it had ended by itself.
func (p *Pooler) Close() (err error) {
	if p.front != nil {
		_ = p.front.listener.Close()
	}
	if p.process != nil {
		if err = p.process.Ended(); err != nil {
			said, _ := os.ReadFile(p.log())
			err = fmt.Errorf("pgbouncer: %w\n%s", err, said)
		}
		p.process.Stop()
	}
	return errors.Join(err, p.dir.Remove())
}

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
	frontend := pgproto3.NewFrontend(server, server)
	frontend.Send(first)
	if frontend.Flush() != nil {
		return
	}
	go func() {
		f.answer(client, server, frontend)
		_ = client.Close() // both ways end together
	}()
	_, _ = io.Copy(server, client)
}

// answer passes on what the server says until it is ready, and so has said all until it is asked. It
// notes the key that the client gets until the connection ends.
func (f *front) answer(client, server net.Conn, said *pgproto3.Frontend) {
	backend := pgproto3.NewBackend(client, client)
	for ready := false; !ready; {
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
		backend.Send(message)
		if backend.Flush() != nil {
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
	backend := pgproto3.NewBackend(conn, conn)
	backend.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "57014", Message: "canceling statement due to user request"})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'E'})
	_ = backend.Flush()
	_ = conn.Close()
}
