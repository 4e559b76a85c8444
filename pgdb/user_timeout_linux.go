package pgdb

import (
	"syscall"
	"time"
)

// tcpUserTimeout is TCP_USER_TIMEOUT, which the package syscall does not name; tcp(7): the
// milliseconds for which what was sent may stay unacknowledged. Keepalive goes by it as well.
const tcpUserTimeout = 0x12

// setUserTimeout does what it can: a sandbox may not have the option.
func setUserTimeout(raw syscall.RawConn, d time.Duration) {
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(d.Milliseconds()))
	})
}
