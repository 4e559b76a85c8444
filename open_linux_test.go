package outbox

import (
	"net"
	"syscall"
	"testing"
)

// F24. The options, as the system has them: what they do is the kernel's.
func TestConnectionsOfOpenHaveKeepaliveAndAUserTimeout(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := new(wire).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		for name, o := range map[string]struct{ level, option, want int }{
			"SO_KEEPALIVE":     {syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1},
			"TCP_KEEPIDLE":     {syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, 10},
			"TCP_KEEPINTVL":    {syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, 5},
			"TCP_KEEPCNT":      {syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, 3},
			"TCP_USER_TIMEOUT": {syscall.IPPROTO_TCP, tcpUserTimeout, 25_000},
		} {
			if got, err := syscall.GetsockoptInt(int(fd), o.level, o.option); err != nil || got != o.want {
				t.Errorf("%s is %d, want %d: %v", name, got, o.want, err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
