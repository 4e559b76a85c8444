//go:build unix

package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

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
