//go:build unix

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/testing/chaos/app"
)

func terminate(a *arena, r *rand.Rand) (string, error) {
	n := 1 + r.IntN(5)
	if r.IntN(10) == 0 {
		n = 1000
	}
	err := a.do(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'
		ORDER BY md5(pid::text || $1) LIMIT $2`, r.Uint32(), n)
	return fmt.Sprint(n, " sessions"), err
}

// killBackend has nothing to kill while the server is starting, or has no session.
func killBackend(a *arena, _ *rand.Rand) (string, error) {
	if a.attaching() {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := a.db.Conn(ctx)
	if err != nil {
		return "", nil
	}
	defer conn.Close()
	pid := 0
	err = conn.QueryRowContext(ctx, `SELECT pid FROM pg_stat_activity WHERE usename = 'app'
		ORDER BY state = 'active' DESC LIMIT 1`).Scan(&pid)
	if err != nil {
		return "", nil
	}
	a.crashed()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return "", nil
	}
	for conn.PingContext(ctx) == nil { // until the server ends all sessions: a task may start meanwhile
		time.Sleep(5 * time.Millisecond)
	}
	a.crashed()
	return fmt.Sprint("process ", pid), nil
}

func crash(a *arena, r *rand.Rand) (string, error) {
	if a.attaching() {
		return "", nil
	}
	down := time.Duration(r.IntN(1000)) * time.Millisecond
	server := a.server()
	if err := server.Stop("immediate"); err != nil {
		return "", err
	}
	a.crashed()
	time.Sleep(down)
	err := server.Start(context.Background())
	a.crashed()
	return fmt.Sprint("for ", down), err
}

// failover promotes the standby, and makes a new one aside.
func failover(a *arena, _ *rand.Rand) (string, error) {
	began := time.Now()
	old, err := a.failOver()
	if old == nil || err != nil {
		return "", err
	}
	for _, s := range a.seats() {
		s.proxy.SendTo(a.address())
	}
	took := time.Since(began)
	if err := a.commitsWaitFor(""); err != nil { // there is no standby yet
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

func fewConnections(a *arena, r *rand.Rand) (string, error) {
	n, d := 3+r.IntN(10), time.Duration(1000+r.IntN(3000))*time.Millisecond
	limit := func(n int) error {
		return a.do(fmt.Sprintf(`ALTER ROLE %s CONNECTION LIMIT %d`, app.User, n))
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

// holdSnapshot begins a transaction that nobody ends for a while, unless the server is starting.
func holdSnapshot(a *arena, r *rand.Rand) (string, error) {
	d := time.Duration(5+r.IntN(20)) * time.Second
	ctx, cancel := context.WithCancel(context.Background())
	late := time.AfterFunc(5*time.Second, cancel)
	tx, err := a.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err == nil {
		_, err = tx.ExecContext(ctx, `SELECT count(*) FROM outbox.relay`)
	}
	if err != nil || !late.Stop() {
		cancel()
		return "", nil
	}
	a.lasts(d, cancel)
	return fmt.Sprint("for ", d), nil
}

// hinderedFor is how long relays may take to get on under hostile settings.
const hinderedFor = time.Minute

// hinder gives the database settings by which PostgreSQL plans badly and compiles nearly all, and
// the app's role a limit of 60 ms for each statement. Sessions begin anew, a relay as well. It
// takes the settings back once the schedule fires.
func hinder(a *arena, r *rand.Rand) (what string, err error) {
	database, began := pq.QuoteIdentifier(a.database), time.Now()
	set := fmt.Sprintf(`ALTER ROLE %s SET statement_timeout = '60ms'`, app.User)
	for _, s := range []string{"enable_seqscan = off", "enable_nestloop = off", "enable_sort = off", "jit = on"} {
		set += fmt.Sprintf(`; ALTER DATABASE %s SET %s`, database, s)
	}
	if err := renewSessions(a, set); err != nil {
		return "", err
	}
	defer func() {
		reset := fmt.Sprintf(`ALTER ROLE %s RESET ALL; ALTER DATABASE %s RESET ALL`, app.User, database)
		err = errors.Join(err, renewSessions(a, reset))
	}()
	s := a.someRelay(r)
	s.kill()
	for first := -1; time.Since(began) < hinderedFor; wait(context.Background(), 200*time.Millisecond) {
		n := 0
		if a.row(&n, `SELECT count(*) FROM tick`) != nil {
			continue // another fault's
		}
		if first < 0 {
			first = n
		}
		if n >= first+3 {
			return fmt.Sprintf("%s began anew, for %v", s.name, time.Since(began).Round(time.Millisecond)), nil
		}
	}
	a.violate("relays that stand still under a database's settings", fmt.Sprint("for ", hinderedFor))
	return "for the whole time", nil
}

// renewSessions changes settings, and ends the sessions that do not have them yet.
func renewSessions(a *arena, statements string) error {
	return errors.Join(a.do(statements),
		a.do(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'`))
}

// clockFile tells libfaketime how far the servers' clock is off.
func clockFile(a *arena) string { return filepath.Join(a.dir, "clock") }

// fakesClock reports whether a chosen fault changes the servers' clock.
func fakesClock(o options) bool { return o.has("clock") || o.has("ahead") }

// fakeClock has the servers use libfaketime. Programs in Go do not.
func fakeClock(a *arena) error {
	var found []string
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib/faketime/libfaketime.so.1",
		"/opt/homebrew/lib/faketime/libfaketime.so.1"} {
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
		if old, ok := os.LookupEnv(name); ok {
			a.cleanup(func() { _ = os.Setenv(name, old) })
		} else {
			a.cleanup(func() { _ = os.Unsetenv(name) })
		}
		if err := os.Setenv(name, value); err != nil {
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
