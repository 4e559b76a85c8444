package upkeep_test

import (
	"errors"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// A beat that waits for the pool says so once the lease is over, before the beat itself has failed.
func TestAHeartbeatThatWaitsForItsPoolSaysSo(t *testing.T) {
	t.Parallel()
	pool := relaytest.Open(t, relaytest.NewDatabase(t).URL)
	pool.SetMaxOpenConns(1)
	r := newRelay(t, pool)
	r.Close()
	held, err := pool.Conn(t.Context())
	relaytest.Must(err)
	beaten := make(chan error, 1)
	go func() { beaten <- r.Beat(t.Context()) }()
	relaytest.Eventually(t, 8*time.Second, "the beat waits for the pool", func() bool {
		return errors.Is(r.Alive(r.now.Add(upkeep.LeaseDuration)), pg.ErrPoolBusy)
	})
	relaytest.Must(held.Close())
	if err := <-beaten; err != nil && !errors.Is(err, pg.ErrPoolBusy) { // on a busy machine
		t.Error(err)
	}
}
