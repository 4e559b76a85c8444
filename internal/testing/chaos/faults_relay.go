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
