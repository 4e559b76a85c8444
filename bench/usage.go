package main

import (
	"runtime"
	"syscall"
	"time"
)

// usage is what a process has used so far.
type usage struct {
	CPU            time.Duration
	Mallocs, Bytes uint64  // of Go's heap
	RSS, Peak      float64 // MB
}

func usageNow() usage {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u := usage{Mallocs: m.Mallocs, Bytes: m.TotalAlloc}
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) == nil {
		u.CPU = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	u.RSS = procKB("/proc/self/status", "VmRSS") / 1024
	u.Peak = procKB("/proc/self/status", "VmHWM") / 1024
	return u
}

// perTask is what one of n tasks used in between, in µs, allocations and bytes.
func perTask(before, after usage, n int) (cpu, mallocs, bytes float64) {
	return float64((after.CPU - before.CPU).Microseconds()) / float64(n),
		float64(after.Mallocs-before.Mallocs) / float64(n), float64(after.Bytes-before.Bytes) / float64(n)
}
