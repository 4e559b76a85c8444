//go:build !linux

package outbox

import (
	"syscall"
	"time"
)

func setUserTimeout(syscall.RawConn, time.Duration) {} // no such option
