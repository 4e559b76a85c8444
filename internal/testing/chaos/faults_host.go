//go:build unix

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// setenv sets a variable for the programs that are started until close.
func setenv(a *arena, name, value string) error {
	if old, ok := os.LookupEnv(name); ok {
		a.cleanup(func() { _ = os.Setenv(name, old) })
	} else {
		a.cleanup(func() { _ = os.Unsetenv(name) })
	}
	return os.Setenv(name, value)
}

// clockFile tells libfaketime how far the servers' clock is off.
func clockFile(a *arena) string { return filepath.Join(a.dir, "clock") }

var libraries = []string{
	"/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib/faketime/libfaketime.so.1",
	"/opt/homebrew/lib/faketime/libfaketime.so.1",
}

// fakesClock reports whether a chosen fault changes the servers' clock.
func fakesClock(o options) bool { return o.has("clock") || o.has("ahead") }

// fakeClock has the servers use libfaketime. Programs in Go do not.
func fakeClock(a *arena) error {
	var found []string
	for _, pattern := range libraries {
		more, _ := filepath.Glob(pattern)
		found = append(found, more...)
	}
	if len(found) == 0 {
		return errors.New("the faults clock and ahead need libfaketime (on Debian the package faketime)")
	}
	for name, value := range map[string]string{
		"LD_PRELOAD": found[0], "FAKETIME_TIMESTAMP_FILE": clockFile(a),
		"FAKETIME_CACHE_DURATION": "1", "DONT_FAKE_MONOTONIC": "1",
	} {
		if err := setenv(a, name, value); err != nil {
			return err
		}
	}
	return setClock(a, 0)
}

func setClock(a *arena, off int) error {
	return os.WriteFile(clockFile(a), fmt.Appendf(nil, "%+ds\n", off), 0o644)
}

// clockAhead sets the servers' clock a day ahead for some seconds: what is written then lies in the
// future.
func clockAhead(a *arena, r *rand.Rand) (string, error) {
	d := time.Duration(2000+r.IntN(3000)) * time.Millisecond
	if err := setClock(a, 24*60*60); err != nil {
		return "", err
	}
	time.Sleep(d)
	return fmt.Sprint("for ", d), setClock(a, 0)
}

// stepClock sets the servers' clock off, up to two minutes: past every lease, and back.
func stepClock(a *arena, r *rand.Rand) (string, error) {
	off := r.IntN(240) - 120
	return strconv.Itoa(off) + " s", setClock(a, off)
}
