package relay

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
)

// rates are the limited ones of the relay's types, by type. It is safe for concurrent use.
type rates map[string]*rate

// rate hands tokens to claims: one for each task that starts. It takes several at a time from the
// type's bucket in the database, and keeps unused tokens for a tenth of the rate's time, at most a
// second. Then it gives them back. With one token a claim, ten workers ran 380 Tx tasks a second of
// a type whose rate does not bind, instead of 1,580.
type rate struct {
	store  *store.Store
	h      *handler.Handler
	mu     sync.Mutex
	tokens int
	taken  time.Time // before the statement that brought the oldest of them
}

func newRates(s *store.Store, of []*handler.Handler) rates {
	out := rates{}
	for _, h := range of {
		if h.Rate > 0 {
			out[h.Type] = &rate{store: s, h: h}
		}
	}
	return out
}

// take returns how many of limit tasks may start now. If none may, it says when to ask again.
func (t rates) take(ctx context.Context, h *handler.Handler, limit int) (n int, wait time.Duration, err error) {
	if h.Rate == 0 {
		return limit, 0, nil
	}
	return t[h.Type].take(ctx, limit)
}

// unused takes n tokens back from a claim that found fewer tasks.
func (t rates) unused(h *handler.Handler, n int) {
	if h.Rate == 0 || n == 0 {
		return
	}
	rate := t[h.Type]
	rate.mu.Lock()
	rate.tokens += n
	rate.mu.Unlock()
}

// giveBack gives back what is too old to be used, or all.
func (t rates) giveBack(ctx context.Context, on *pg.Dedicated, all bool) error {
	for _, rate := range t {
		if err := rate.giveBack(ctx, on, all); err != nil {
			return err
		}
	}
	return nil
}

func (t *rate) keep() time.Duration { return min(t.h.RatePer/10, time.Second) }

// ahead is how many tokens a relay takes at least, if there are as many: half of what drips in
// while it may keep them.
func (t *rate) ahead() int {
	return int(float64(t.h.Rate) * t.keep().Seconds() / t.h.RatePer.Seconds() / 2)
}

func (t *rate) take(ctx context.Context, limit int) (n int, wait time.Duration, err error) {
	t.mu.Lock() // also through the statement: others of this process wait for what it brings
	defer t.mu.Unlock()
	back := 0
	if time.Since(t.taken) > t.keep() {
		back, t.tokens = t.tokens, 0
	}
	if n = min(limit, t.tokens); n < limit {
		sent := time.Now()
		var got int
		var until time.Duration
		err := t.store.Conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
			got, until, err = t.exchange(ctx, tx, max(limit-n, t.ahead()), back)
			return err
		})
		if err != nil {
			return 0, 0, err
		}
		if t.tokens == 0 {
			t.taken = sent
		}
		t.tokens += got
		n, wait = min(limit, t.tokens), until
	}
	t.tokens -= n
	return n, wait, nil
}

func (t *rate) giveBack(ctx context.Context, on *pg.Dedicated, all bool) error {
	if !t.mu.TryLock() {
		return nil // a claim is at it, and may wait for a connection
	}
	defer t.mu.Unlock()
	if t.tokens == 0 || !all && time.Since(t.taken) <= t.keep() {
		return nil
	}
	back := t.tokens
	t.tokens = 0
	return on.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, _, err := t.exchange(ctx, tx, 0, back)
		return err
	})
}

// A bucket is written as the moment at which it would have been empty, so it fills by itself. It
// holds a tenth of the rate, or one. put_back: the server's clock was.
const exchangeTokensSQL = `/* outbox: take tokens of a rate, and give some back */
WITH bucket AS MATERIALIZED (
  SELECT task_type, emptied_at, clock_timestamp() AS at FROM outbox.bucket WHERE task_type = $1 FOR UPDATE),
filled AS MATERIALIZED (
  SELECT b.task_type, b.at, step.us AS step, b.emptied_at > b.at AS put_back,
         GREATEST(b.at - GREATEST(t.rate / 10, 1) * step.us * interval '1 microsecond',
                  LEAST(b.emptied_at, b.at) - $3::integer * step.us * interval '1 microsecond') AS since
    FROM bucket b JOIN outbox.task_type t USING (task_type)
   CROSS JOIN LATERAL (SELECT t.rate_per::float8 / t.rate AS us) AS step),
taken AS MATERIALIZED (
  SELECT task_type, step, since, put_back, waited.us AS waited, LEAST($2::integer, floor(waited.us / step + 1e-6)) AS n
    FROM filled CROSS JOIN LATERAL (SELECT extract(epoch FROM at - since)::float8 * 1000000 AS us) AS waited),
written AS (
  UPDATE outbox.bucket b SET emptied_at = taken.since + taken.n * taken.step * interval '1 microsecond'
    FROM taken WHERE b.task_type = taken.task_type AND (taken.n > 0 OR $3::integer > 0 OR taken.put_back))
SELECT n::bigint, ceil((n + 1) * step - waited)::bigint FROM taken`

// tokenWait is the most to wait before asking again: the rate may have been changed meanwhile.
const tokenWait = 5 * time.Second

// exchange takes up to want tokens from the bucket. The next one after these can be had after wait.
func (t *rate) exchange(ctx context.Context, in outbox.Querier, want, back int) (
	got int, wait time.Duration, err error) {
	var us int64
	err = in.QueryRowContext(ctx, t.store.SQL(exchangeTokensSQL), t.h.Type, want, back).Scan(&got, &us)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, tokenWait, nil // the bucket is not there; maintenance restores it
	}
	return got, time.Duration(us) * time.Microsecond, err
}
