package main

import (
	"syscall"
	"time"
)

// Usage is what a process has used so far.
type Usage struct {
	CPU  time.Duration
	Peak float64 // MB resident at most
}

func usageNow() Usage {
	u := Usage{Peak: procKB("/proc/self/status", "VmHWM") / 1024}
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) == nil {
		u.CPU = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	return u
}

// perTask is the CPU time of each of n tasks in between, in µs.
func perTask(before, after Usage, n int) float64 {
	return float64((after.CPU - before.CPU).Microseconds()) / float64(n)
}
