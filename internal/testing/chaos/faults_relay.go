//go:build unix

package main

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/chaos/app"
	"github.com/txoutbox/outbox/internal/testing/proxy"
	"github.com/txoutbox/outbox/schema"
)

func killRelay(a *arena, r *rand.Rand) (string, error) {
	s := a.someRelay(r)
	select {
	case <-s.running().Ended:
		return "", nil
	default:
	}
	s.kill()
	return s.name, nil
}

// points of a relay's loop, as messages on its connections tell them.
var points = map[string]proxy.Trap{
	"claim sent":     {Catches: proxy.Statement("/* outbox: claim"), How: proxy.LoseBoth},
	"claimed":        {Catches: proxy.Statement("/* outbox: claim"), How: proxy.LoseReply},
	"lease sent":     {Catches: proxy.Statement("/* outbox: lease"), How: proxy.LoseBoth},
	"leased":         {Catches: proxy.Statement("/* outbox: lease"), How: proxy.LoseReply},
	"journalled":     {Catches: proxy.Statement("/* outbox: journal runs"), How: proxy.LoseReply},
	"in handler":     {Catches: proxy.Statement("INSERT INTO effect"), How: proxy.LoseRequest},
	"handler done":   {Catches: proxy.Statement("INSERT INTO effect"), How: proxy.LoseReply},
	"released":       {Catches: proxy.Statement("/* outbox: end a claim"), How: proxy.LoseReply},
	"commit sent":    {Catches: proxy.Commit("INSERT INTO effect"), How: proxy.LoseBoth},
	"commit acked":   {Catches: proxy.Commit("INSERT INTO effect"), How: proxy.LoseReply},
	"bookkeeping":    {Catches: proxy.Statement("/* outbox: write back"), How: proxy.LoseReply},
	"results sent":   {Catches: proxy.Statement("/* outbox: complete leased tasks"), How: proxy.LoseBoth},
	"results acked":  {Catches: proxy.Statement("/* outbox: complete leased tasks"), How: proxy.LoseReply},
	"heartbeat sent": {Catches: proxy.Statement("/* outbox: heartbeat"), How: proxy.LoseBoth},
}

func killAtPoint(a *arena, r *rand.Rand) (string, error) {
	names := slices.Sorted(maps.Keys(points))
	name, s := names[r.IntN(len(names))], a.someRelay(r)
	trap := points[name]
	trap.Then = s.kill
	a.aside("point", func() (string, error) {
		if !s.proxy.Spring(trap, trapWaits) {
			return "", nil
		}
		return s.name + ", " + name, nil
	})
	return "", nil
}

func freeze(a *arena, r *rand.Rand) (string, error) {
	s, d := a.someRelay(r), 12*time.Second+time.Duration(r.IntN(4000))*time.Millisecond
	p := s.running()
	p.signal(syscall.SIGSTOP)
	a.lasts(d, func() { p.signal(syscall.SIGCONT) })
	return fmt.Sprint(s.name, " for ", d), nil
}

func drain(a *arena, r *rand.Rand) (string, error) {
	s := a.someRelay(r)
	a.aside("drain", func() (string, error) {
		endInTime(a, s)
		return s.name, nil
	})
	return "", nil
}

func endInTime(a *arena, s *seat) {
	if !s.ends() {
		a.violate("relays that did not end within 40 s of SIGTERM", s.name)
	}
}

func rollingRestart(a *arena, _ *rand.Rand) (string, error) {
	a.aside("rolling", func() (string, error) {
		for _, s := range a.relays {
			endInTime(a, s)
			db, err := sql.Open("postgres", s.config.URL)
			if err != nil {
				return "", err
			}
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			_ = schema.Migrate(ctx, db) // it may meet the next fault
			cancel()
			_ = db.Close()
		}
		return "all", nil
	})
	return "", nil
}

// trapWaits is how long a trap waits for a message.
const trapWaits = 1500 * time.Millisecond

func cutCommit(a *arena, r *rand.Rand) (string, error) {
	how := []proxy.How{proxy.LoseReply, proxy.LoseReply, proxy.LoseRequest, proxy.LoseBoth}[r.IntN(4)]
	s, of := a.someRelay(r), "INSERT INTO effect"
	switch r.IntN(4) {
	case 0:
		s, of = a.producers[r.IntN(len(a.producers))], "INSERT INTO business"
	case 1:
		of = "/* outbox: "
	}
	a.aside("commit", func() (string, error) {
		if !s.proxy.Spring(proxy.Trap{Catches: proxy.Commit(of), How: how}, trapWaits) {
			return "", nil
		}
		return fmt.Sprintf("%s, a COMMIT after %s, how %d", s.name, of, how), nil
	})
	return "", nil
}

func someProxy(a *arena, r *rand.Rand) *proxy.Proxy {
	all := a.seats()
	return all[r.IntN(len(all))].proxy
}

func cut(a *arena, r *rand.Rand) (string, error) {
	after := r.IntN(2) * r.IntN(2000)
	if !someProxy(a, r).Cut(after) {
		return "", nil
	}
	return fmt.Sprintf("after %d bytes", after), nil
}

// silence silences a connection of a relay: one that has sent LISTEN, or another one.
func silence(listening bool) func(a *arena, r *rand.Rand) (string, error) {
	return func(a *arena, r *rand.Rand) (string, error) {
		s := a.someRelay(r)
		if !s.proxy.Silence(listening) {
			return "", nil
		}
		return s.name, nil
	}
}

func delay(a *arena, r *rand.Rand) (string, error) {
	p, d := someProxy(a, r), time.Duration(20+r.IntN(200))*time.Millisecond
	p.Delay(d)
	a.lasts(time.Duration(r.IntN(4000))*time.Millisecond, func() { p.Delay(0) })
	return d.String(), nil
}

func enqueuePoison(a *arena, r *rand.Rand) (string, error) {
	how := app.Poisons[r.IntN(len(app.Poisons))]
	return how, enqueue(a, app.TypePoison, how)
}

// enqueue adds a task. It is tried for 20 s, as the server may be starting. Each try is a task of
// its own, as the one before may have committed.
func enqueue(a *arena, kind outbox.TaskType[app.Payload], how string) error {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		if err := tryToEnqueue(a, kind, how); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// tryToEnqueue writes a ledger, as producers do. After an error the outcome is unknown.
func tryToEnqueue(a *arena, kind outbox.TaskType[app.Payload], how string) error {
	const producer = "faults"
	n := a.count("tasks of faults", 1)
	k := fmt.Sprintf("fault-%d", n)
	if err := app.Intend(a.dir, producer, n, kind.Name()+":"+k); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := outbox.InTx(ctx, a.db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO business (k) VALUES ($1)`, k); err != nil {
			return err
		}
		_, err := kind.Enqueue(ctx, tx, app.Payload{K: k, How: how})
		return err
	})
	if err != nil {
		return err
	}
	return app.End(a.dir, producer, n, app.Acked)
}

// refuseTarget fills the stream of one target for a while: the broker refuses its events and takes
// those of the others.
func refuseTarget(a *arena, r *rand.Rand) (string, error) {
	target, d := r.IntN(app.Targets), time.Duration(2000+r.IntN(4000))*time.Millisecond
	accept := func(yes bool) error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		return a.broker.accept(ctx, target, yes)
	}
	if err := accept(false); err != nil {
		return "", err
	}
	a.lasts(d, func() {
		if err := accept(true); err != nil {
			a.complain("target %d stays full: %v", target, err)
		}
	})
	return fmt.Sprint("target ", target, " for ", d), nil
}

// rotatePassword changes the broker's password. The app's processes have the new one some seconds
// later, after several refused logins.
func rotatePassword(a *arena, r *rand.Rand) (string, error) {
	if a.rotating.Swap(true) {
		return "", nil
	}
	d := time.Duration(1000+r.IntN(3000)) * time.Millisecond
	if err := a.broker.rotate(); err != nil {
		a.rotating.Store(false)
		return "", err
	}
	a.lasts(d, func() {
		if err := a.broker.tellApp(); err != nil {
			a.complain("the app has no password of the broker: %v", err)
		}
		a.rotating.Store(false)
	})
	return fmt.Sprint("the app has it after ", d), nil
}
