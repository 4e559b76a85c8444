//go:build unix

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func (a *arena) terminate(r *rand.Rand) (string, error) {
	n := 1 + r.IntN(5)
	if r.IntN(10) == 0 {
		n = 1000
	}
	err := a.do(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app' ORDER BY md5(pid::text || $1) LIMIT $2`, r.Uint32(), n)
	return fmt.Sprint(n, " sessions"), err
}

func (a *arena) killBackend(*rand.Rand) (string, error) {
	if a.attaching() {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	pid := 0
	err := a.admin(ctx, func(db *sql.DB) error {
		conn, err := db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		err = conn.QueryRowContext(ctx, `SELECT pid FROM pg_stat_activity WHERE usename = 'app' ORDER BY state = 'active' DESC LIMIT 1`).Scan(&pid)
		if err != nil {
			return err
		}
		a.crashed()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return err
		}
		for conn.PingContext(ctx) == nil { // until the server ends all sessions: a task may start meanwhile
			time.Sleep(5 * time.Millisecond)
		}
		a.crashed()
		return nil
	})
	if err != nil {
		return "", nil // the server is on its way, or there is no session
	}
	return fmt.Sprint("process ", pid), nil
}

func (a *arena) crash(r *rand.Rand) (string, error) {
	if a.attaching() {
		return "", nil
	}
	down := time.Duration(r.IntN(1000)) * time.Millisecond
	if err := a.primary.Stop("immediate"); err != nil {
		return "", err
	}
	a.crashed()
	time.Sleep(down)
	err := a.primary.Start(context.Background())
	a.crashed()
	return fmt.Sprint("for ", down), err
}

// attaching reports whether a standby is being made, which a crash would end.
func (a *arena) attaching() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.standby == nil && a.has("failover")
}

// crashed notes the moment: what the server had committed asynchronously shortly before may be lost.
func (a *arena) crashed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.crashes = append(a.crashes, time.Now())
}

// failover kills the primary, promotes the standby, and makes a new one, aside.
func (a *arena) failover(*rand.Rand) (string, error) {
	a.mu.Lock()
	old, next := a.primary, a.standby
	a.mu.Unlock()
	if next == nil {
		return "", nil
	}
	if n, err := a.number(`SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'`); err != nil || n != 1 {
		return "", nil // it is catching up: nobody would promote it
	}
	began := time.Now()
	if err := old.Kill(); err != nil {
		return "", err
	}
	a.crashed()
	if err := next.Promote(context.Background()); err != nil {
		return "", err
	}
	a.mu.Lock()
	a.primary, a.standby = next, nil
	a.mu.Unlock()
	for _, s := range append(a.relays, a.producers...) {
		s.proxy.SendTo(a.address())
	}
	took := time.Since(began)
	if err := a.synchronous(""); err != nil { // commits wait for a standby that is not there yet
		return "", err
	}
	a.asides.Go(func() {
		if err := old.Close(); err != nil {
			a.complain("the old primary: %v", err)
		}
		for a.attachStandby(context.Background()) != nil && !a.over.Load() { // the server may crash meanwhile
			time.Sleep(100 * time.Millisecond)
		}
	})
	return fmt.Sprint("in ", took.Round(time.Millisecond)), nil
}

func (a *arena) fewConnections(r *rand.Rand) (string, error) {
	n, d := 3+r.IntN(10), time.Duration(1000+r.IntN(3000))*time.Millisecond
	limit := func(n int) error {
		return a.do(fmt.Sprintf(`ALTER ROLE %s CONNECTION LIMIT %d`, app, n))
	}
	if err := limit(n); err != nil {
		return "", err
	}
	a.lasts(d, func() {
		if err := limit(-1); err != nil {
			a.complain("the limit of connections stays: %v", err)
		}
	})
	return fmt.Sprint(n, " for ", d), a.do(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'`)
}

// holdSnapshot is a forgotten transaction.
func (a *arena) holdSnapshot(r *rand.Rand) (string, error) {
	d := time.Duration(5+r.IntN(20)) * time.Second
	ctx, cancel := context.WithCancel(context.Background())
	held := make(chan error, 1)
	go func() {
		_ = a.admin(ctx, func(db *sql.DB) error {
			tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
			if err == nil {
				_, err = tx.ExecContext(ctx, `SELECT count(*) FROM outbox.relay`)
			}
			held <- err
			<-ctx.Done()
			return nil
		})
	}()
	select {
	case err := <-held:
		if err != nil {
			cancel()
			return "", nil // the server is on its way
		}
	case <-time.After(5 * time.Second):
		cancel()
		return "", nil
	}
	a.lasts(d, cancel)
	return fmt.Sprint("for ", d), nil
}

// ram is where the cluster of a run with full disks is.
func (a *arena) ram() string { return filepath.Join(a.dir, "ram") }

// clockFile tells libfaketime how far the server's clock is off.
func (a *arena) clockFile() string { return filepath.Join(a.dir, "clock") }

var libraries = []string{"/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib/faketime/libfaketime.so.1", "/opt/homebrew/lib/faketime/libfaketime.so.1"}

// prepareFaults makes what must be there before the server starts.
func (a *arena) prepareFaults() error {
	a.environment = map[string]string{}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		a.environment[name] = value
	}
	if err := os.Chmod(a.dir, 0o755); err != nil {
		return err
	}
	if a.has("disk") {
		if err := os.Mkdir(a.ram(), 0o777); err != nil {
			return err
		}
		if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=400m,mode=1777", "tmpfs", a.ram()).CombinedOutput(); err != nil {
			return fmt.Errorf("the fault disk needs root, to mount a small tmpfs: %w: %s", err, out)
		}
		if err := os.Setenv("TMPDIR", a.ram()); err != nil {
			return err
		}
	}
	if a.has("clock") {
		var found []string
		for _, pattern := range libraries {
			more, _ := filepath.Glob(pattern)
			found = append(found, more...)
		}
		if len(found) == 0 {
			return errors.New("the fault clock needs libfaketime (on Debian the package faketime)")
		}
		// For the servers that are started from now on. Programs in Go do not use it.
		for name, value := range map[string]string{"LD_PRELOAD": found[0], "FAKETIME_TIMESTAMP_FILE": a.clockFile(), "FAKETIME_CACHE_DURATION": "1", "DONT_FAKE_MONOTONIC": "1"} {
			if err := os.Setenv(name, value); err != nil {
				return err
			}
		}
		return a.setClock(0)
	}
	return nil
}

func (a *arena) endFaults() {
	if a.has("disk") {
		_ = exec.Command("umount", a.ram()).Run()
	}
	for _, name := range []string{"LD_PRELOAD", "FAKETIME_TIMESTAMP_FILE", "FAKETIME_CACHE_DURATION", "DONT_FAKE_MONOTONIC", "TMPDIR"} {
		if value, ok := a.environment[name]; !ok {
			_ = os.Unsetenv(name)
		} else {
			_ = os.Setenv(name, value)
		}
	}
}

func (a *arena) setClock(off int) error {
	return os.WriteFile(a.clockFile(), []byte(fmt.Sprintf("%+ds\n", off)), 0o644)
}

// stepClock sets the server's clock off, up to two minutes: past every lease, and back.
func (a *arena) stepClock(r *rand.Rand) (string, error) {
	off := r.IntN(240) - 120
	return strconv.Itoa(off) + " s", a.setClock(off)
}

// fillDisk leaves no byte free for a moment. The server may stop by itself, and is started again then.
func (a *arena) fillDisk(r *rand.Rand) (string, error) {
	ballast := filepath.Join(a.ram(), "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		return "", err
	}
	block := make([]byte, 1<<20)
	for err == nil {
		_, err = f.Write(block)
	}
	block = block[:512]
	for err = nil; err == nil; {
		_, err = f.Write(block)
	}
	_ = f.Close()
	d := time.Duration(500+r.IntN(2500)) * time.Millisecond
	for until := time.Now().Add(d); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		a.crashed() // it may, at any moment
	}
	if err := os.Remove(ballast); err != nil {
		return "", err
	}
	a.crashed()
	return fmt.Sprint("for ", d), a.primary.Start(context.Background())
}
