package pgdb_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"syscall"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/pgdb"
)

// tcpUserTimeout is TCP_USER_TIMEOUT (tcp(7)), which the package syscall does not name.
const tcpUserTimeout = 0x12

// F24. The options, as the system has them: what they do is the kernel's.
func TestConnectionsOfOpenHaveKeepaliveAndAUserTimeout(t *testing.T) {
	t.Parallel()
	secure := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{KeepAlive: -1}).DialContext(ctx, network, address)
		return tls.Client(conn, &tls.Config{InsecureSkipVerify: true}), err
	}
	for name, opts := range map[string][]pgdb.Option{"Open": nil, "Dialer": {pgdb.Dialer(secure)}} {
		t.Run(name, func(t *testing.T) { hasKeepaliveAndAUserTimeout(t, opts...) })
	}
}

func hasKeepaliveAndAUserTimeout(t *testing.T, opts ...pgdb.Option) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	relaytest.Must(err)
	db, err := pgdb.Open(fmt.Sprintf("postgres://%s/?sslmode=disable", l.Addr()), opts...)
	relaytest.Must(err)
	dialled := make(chan struct{})
	go func() {
		_ = db.PingContext(t.Context()) // fails when the test closes what it accepts
		close(dialled)
	}()
	accepted, err := l.Accept()
	relaytest.Must(err)
	defer func() {
		accepted.Close()
		l.Close()
		<-dialled
		db.Close()
	}()
	if _, err := accepted.Read(make([]byte, 1)); err != nil { // the client is done with its options
		t.Fatal(err)
	}
	fd := socketTo(t, l.Addr().(*net.TCPAddr).Port)
	for name, o := range map[string]struct{ level, option, want int }{
		"SO_KEEPALIVE":     {syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1},
		"TCP_KEEPIDLE":     {syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, 10},
		"TCP_KEEPINTVL":    {syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, 5},
		"TCP_KEEPCNT":      {syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, 3},
		"TCP_USER_TIMEOUT": {syscall.IPPROTO_TCP, tcpUserTimeout, 25_000},
	} {
		if got, err := syscall.GetsockoptInt(fd, o.level, o.option); err != nil || got != o.want {
			t.Errorf("%s is %d, want %d: %v", name, got, o.want, err)
		}
	}
}

// socketTo is this process's socket that is connected to the port of 127.0.0.1.
func socketTo(t *testing.T, port int) int {
	t.Helper()
	for fd := range 1 << 12 {
		peer, err := syscall.Getpeername(fd)
		if at, ok := peer.(*syscall.SockaddrInet4); err == nil && ok && at.Port == port {
			return fd
		}
	}
	t.Fatalf("no socket is connected to port %d", port)
	return 0
}
