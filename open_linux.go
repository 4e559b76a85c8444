package outbox

import (
	"syscall"
	"time"
)

// tcpUserTimeout is TCP_USER_TIMEOUT, which the package syscall does not name; tcp(7): the milliseconds for which what was sent may stay
// unacknowledged. Keepalive goes by it as well.
const tcpUserTimeout = 0x12

func setUserTimeout(raw syscall.RawConn, d time.Duration) error {
	var err error
	controlErr := raw.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(d.Milliseconds()))
	})
	if controlErr != nil {
		return controlErr
	}
	return err
}
