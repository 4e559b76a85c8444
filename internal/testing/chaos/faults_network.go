//go:build unix

package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/txoutbox/outbox/internal/testing/proxy"
)

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
