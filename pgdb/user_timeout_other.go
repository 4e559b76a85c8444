//go:build !linux

package pgdb

import (
	"syscall"
	"time"
)

func setUserTimeout(syscall.RawConn, time.Duration) {} // no such option
