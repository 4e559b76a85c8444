package dashboard

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/pgerr"
)

const beginReadSQL = `/* outbox: dashboard: bound the statements of a page */
SELECT set_config('statement_timeout', $1, true), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

// readFor runs f in a read-only transaction in which no statement takes longer than the config
// allows, and returns PostgreSQL's time.
func (s *site) readFor(ctx context.Context, f func(c *admin.Client) error) (now time.Time, err error) {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return now, fmt.Errorf("dashboard: begin: %w", pgerr.WithoutDSN(err))
	}
	defer tx.Rollback() // it has written nothing
	var ignored string
	var micros int64
	if err := tx.QueryRowContext(ctx, beginReadSQL, strconv.FormatInt(s.config.StatementTimeout.Milliseconds(), 10)).Scan(&ignored, &micros); err != nil {
		return now, fmt.Errorf("dashboard: begin: %w", pgerr.WithoutDSN(err))
	}
	return time.UnixMicro(micros), f(s.client.In(tx))
}

// read runs f for the page, and notes PostgreSQL's time.
func (v *view) read(f func(ctx context.Context, c *admin.Client) error) error {
	ctx := v.r.Context()
	now, err := v.readFor(ctx, func(c *admin.Client) error { return f(ctx, c) })
	if !now.IsZero() {
		v.Now = now
	}
	return err
}

// snapshot is what all viewers share for a second.
type snapshot struct {
	at     time.Time // by PostgreSQL's clock
	types  []admin.Type
	relays []admin.Relay
}

func (s *snapshot) typeNamed(name string) (admin.Type, bool) {
	for _, t := range s.types {
		if t.Type == name {
			return t, true
		}
	}
	return admin.Type{}, false
}

// sum is all types together.
func (s *snapshot) sum() (out admin.Type) {
	for _, t := range s.types {
		out.Ready += t.Ready
		out.Scheduled += t.Scheduled
		out.Leased += t.Leased
		out.Waiting += t.Waiting
		out.Dead += t.Dead
		out.Finished += t.Finished
		out.Failed += t.Failed
		out.OldestReady = max(out.OldestReady, t.OldestReady)
	}
	return out
}

const (
	snapshotAge = time.Second
	ratesOver   = 30 * time.Second
)

// snapshots keeps the last one, and those of the last seconds, whose differences are rates.
type snapshots struct {
	mu   sync.Mutex // held while one is read, so that it is read once for all who wait
	at   time.Time
	err  error
	past []*snapshot
}

func (v *view) snapshot() (*snapshot, error) {
	shared := &v.shared
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if time.Since(shared.at) > snapshotAge {
		// For all who wait, so it does not end with one of them.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), 2*v.config.StatementTimeout)
		defer cancel()
		s := &snapshot{}
		s.at, shared.err = v.readFor(ctx, func(c *admin.Client) (err error) {
			if s.types, err = c.Types(ctx); err != nil {
				return err
			}
			s.relays, err = c.Relays(ctx)
			return err
		})
		shared.at = time.Now()
		if shared.err == nil {
			shared.past = append(shared.past, s)
			for s.at.Sub(shared.past[0].at) > ratesOver || s.at.Before(shared.past[0].at) {
				shared.past = shared.past[1:]
			}
		}
	}
	if shared.err != nil {
		return nil, shared.err
	}
	s := shared.past[len(shared.past)-1]
	v.Now = s.at
	return s, nil
}

// rate is how many tasks finished and how many runs failed in a second.
type rate struct {
	Finished, Failed float64
	Known            bool
}

// rate is of one type ("": of all): over the last seconds, if somebody looked then, else between
// the last two samples.
func (v *view) rate(name string, samples []admin.Sample) (r rate) {
	v.shared.mu.Lock()
	past := v.shared.past
	v.shared.mu.Unlock()
	last := past[len(past)-1]
	first := past[0]
	seconds := last.at.Sub(first.at).Seconds()
	if seconds < 1.5 {
		if n := len(samples); n >= 2 && last.at.Sub(samples[n-1].At) < 3*time.Minute {
			a, b := samples[n-2], samples[n-1]
			if d := b.At.Sub(a.At).Seconds(); d > 0 && d < maxGap.Seconds() {
				return rate{max(float64(b.Finished-a.Finished)/d, 0), max(float64(b.Failed-a.Failed)/d, 0), true}
			}
		}
		return rate{}
	}
	of := func(s *snapshot) admin.Type {
		if name == "" {
			return s.sum()
		}
		t, _ := s.typeNamed(name)
		return t
	}
	a, b := of(first), of(last)
	return rate{max(float64(b.Finished-a.Finished)/seconds, 0), max(float64(b.Failed-a.Failed)/seconds, 0), true}
}

// stale has the next page read anew, so that who did something sees it.
func (s *snapshots) stale() {
	s.mu.Lock()
	s.at = time.Time{}
	s.mu.Unlock()
}
