package relay_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

const (
	noWakeUps    = "no wake-ups by LISTEN"
	wakeUpsAgain = "wake-ups by LISTEN work again"
)

// A password that is rotated ends LISTEN until the relay knows the next one.
func TestListenGoesOnWithARotatedPassword(t *testing.T) {
	t.Parallel()
	db := adopt(t, pgtest.Local(t, nil).URL()) // it asks for passwords
	db.Do(t, `CREATE ROLE listener LOGIN PASSWORD 'C4n4ry-1'`)
	var password atomic.Value
	password.Store("C4n4ry-1")
	r := run(t, open(t, db.URL), all(), relay.Config{PollInterval: time.Minute,
		ListenDSNFunc: func(context.Context) (string,
			error) {
			return as(t, db.URL, "listener", password.Load().(string)), nil
		}})
	listening(t, db)
	db.Do(t, `ALTER ROLE listener PASSWORD 'C4n4ry-2'`)
	db.Do(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'listener'`)
	eventually(t, 20*time.Second, "the relay warns", func() bool { return r.Log.Count(noWakeUps) == 1 })
	if err := r.Health(); err != nil { // it polls
		t.Errorf("Health: %v", err)
	}
	r.Log.Want(t, 1, "password authentication failed")
	password.Store("C4n4ry-2")
	eventually(t, 20*time.Second, "LISTEN works with the new password",
		func() bool { return r.Log.Count(wakeUpsAgain) == 1 })
	r.Log.Want(t, 0, "C4n4ry")
}

// If the function fails in any way, the relay warns without any text that may be a connection string,
// and asks again.
func TestAFunctionForTheDSNThatFailsIsAskedAgain(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	tests := map[string]func(*testing.T){}
	for reason, fails := range map[string]func() (string, error){
		"the vault is sealed":    func() (string, error) { return "", errors.New("the vault is sealed") },
		"the error is not shown": func() (string, error) { return "", errors.New("postgres://app:C4n4ry@host/app") },
		"its text is not shown":  func() (string, error) { return "password=a C4n4ry", nil },
		"panic: no vault":        func() (string, error) { panic("no vault") },
		"ended the goroutine":    func() (string, error) { runtime.Goexit(); return "", nil },
	} {
		tests[reason] = func(t *testing.T) {
			var well atomic.Bool
			r := run(t, open(t, db.URL), all(), relay.Config{ListenDSNFunc: func(context.Context) (string, error) {
				if well.Load() {
					return db.URL, nil
				}
				return fails()
			}})
			eventually(t, 20*time.Second, "the relay warns", func() bool { return r.Log.Count(noWakeUps) == 1 })
			r.Log.Want(t, 1, reason)
			well.Store(true)
			eventually(t, 20*time.Second, "LISTEN works", func() bool { return r.Log.Count(wakeUpsAgain) == 1 })
			r.Log.Want(t, 0, "C4n4ry")
		}
	}
	relaytest.Together(t, tests)
}

// The relay starts, polls and stops beside a function that does not return, of which it calls one.
func TestAFunctionForTheDSNThatHangsHoldsUpNothing(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	var calls atomic.Int64
	release := make(chan struct{})
	defer close(release)
	r := run(t, open(t, db.URL), all(), relay.Config{PollInterval: 50 * time.Millisecond,
		ListenDSNFunc: func(context.Context) (string, error) {
			calls.Add(1)
			<-release
			return db.URL, nil
		}})
	r.Leaves("TestAFunctionForTheDSNThatHangsHoldsUpNothing")
	db.Enqueue(t, "TX", 1)
	db.Emptied(t, 20*time.Second)
	eventually(t, 40*time.Second, "the relay warns", func() bool { return r.Log.Count("did not return") == 1 })
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
	r.Stop()
}
