package dashboard

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/taskview"
)

const beginReadSQL = `/* outbox: dashboard: bound the statements of a page */
SELECT set_config('statement_timeout', $1, true), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

// readFor runs f in a read-only transaction with the statement timeout of the config, and returns
// PostgreSQL's time.
func (s *site) readFor(ctx context.Context, f func(ctx context.Context, c *admin.Client) error) (now time.Time,
	err error) {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: true})
	if err != nil {
		return now, fmt.Errorf("dashboard: begin: %w", pgerr.NoConnection(pgerr.WithoutDSN(err)))
	}
	defer tx.Rollback() // it has written nothing
	var ignored string
	var micros int64
	if err := tx.QueryRowContext(ctx, beginReadSQL,
		strconv.FormatInt(s.config.StatementTimeout.Milliseconds(), 10)).Scan(&ignored, &micros); err != nil {
		return now, fmt.Errorf("dashboard: begin: %w", pgerr.WithoutDSN(err))
	}
	return time.UnixMicro(micros), f(ctx, s.client.In(tx))
}

// read runs f for the page, and notes PostgreSQL's time.
func (v *view) read(f func(ctx context.Context, c *admin.Client) error) error {
	now, err := v.site.readFor(v.r.Context(), f)
	if !now.IsZero() {
		v.Now = now
	}
	return err
}

// get returns the result of one read for the page.
func get[T any](
	v *view, read func(*admin.Client, context.Context) (T, error),
) (found T, err error) {
	err = v.read(func(ctx context.Context, c *admin.Client) (err error) {
		found, err = read(c, ctx)
		return err
	})
	return found, err
}

// cache has values that all viewers share. While one request reads a value, the others wait for it.
type cache[T any] struct {
	mu   sync.Mutex
	kept map[string]entry[T]
}

type entry[T any] struct {
	until time.Time
	value T
	err   error
}

// get returns the value of a key, or reads it and keeps it for the age. It keeps an error for a
// second.
func (c *cache[T]) get(key string, age time.Duration, read func() (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.kept, func(_ string, e entry[T]) bool { return time.Now().After(e.until) })
	e, known := c.kept[key]
	if !known {
		if e.value, e.err = read(); e.err != nil {
			age = time.Second
		}
		e.until = time.Now().Add(age)
		if c.kept == nil {
			c.kept = map[string]entry[T]{}
		}
		c.kept[key] = e
	}
	return e.value, e.err
}

// forget drops all values.
func (c *cache[T]) forget() {
	c.mu.Lock()
	clear(c.kept)
	c.mu.Unlock()
}

// readShared is readFor for all requests that wait, so the end of one request does not end it.
func (v *view) readShared(f func(ctx context.Context, c *admin.Client) error) (now time.Time, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), 2*v.site.config.StatementTimeout)
	defer cancel()
	return v.site.readFor(ctx, f)
}

// snapshot is the present state.
type snapshot struct {
	at     time.Time // by PostgreSQL's clock
	types  []admin.Type
	relays []admin.Relay
	origin admin.Origin
}

func (v *view) snapshot() (*snapshot, error) {
	s, err := v.site.snapshots.get("", time.Second, func() (*snapshot, error) {
		s := &snapshot{}
		var err error
		s.at, err = v.readShared(func(ctx context.Context, c *admin.Client) (err error) {
			if s.types, err = c.Types(ctx); err != nil {
				return err
			}
			if s.relays, err = c.Relays(ctx); err != nil {
				return err
			}
			if o, err := c.Origin(ctx); err == nil { // the last statement: an older role may lack the right
				s.origin = o
			}
			return nil
		})
		return s, err
	})
	if err == nil {
		v.Now, v.Origin = s.at, s.origin
	}
	return s, err
}

func (s *snapshot) typeNamed(name string) (admin.Type, bool) {
	for _, t := range s.types {
		if t.Type == name {
			return t, true
		}
	}
	return admin.Type{}, false
}

// count is the number of tasks of a type ("": of all) in the states.
func (s *snapshot) count(taskType string, states ...admin.State) (n int64) {
	t := taskview.Sum(s.types)
	if taskType != "" {
		t, _ = s.typeNamed(taskType)
	}
	for _, state := range states {
		n += countIn(t, state)
	}
	return n
}

// countIn is the number of a type's tasks in a state; of finished ones it is not known.
func countIn(t admin.Type, s admin.State) int64 {
	return map[admin.State]int64{admin.StateReady: t.Ready, admin.StateScheduled: t.Scheduled,
		admin.StateRetrying: t.Retrying, admin.StateLeased: t.Leased, admin.StateWaiting: t.Waiting,
		admin.StateDead: t.Dead}[s]
}

const samplesAge = 15 * time.Second // a relay takes one a minute

// readSamples returns the samples of the types ("": of all) over the last d, by type.
func (v *view) readSamples(d time.Duration, types ...string) (map[string][]admin.Sample, error) {
	return v.site.samples.get(d.String()+"\n"+strings.Join(types, "\n"), samplesAge,
		func() (map[string][]admin.Sample, error) {
			out := map[string][]admin.Sample{}
			_, err := v.readShared(func(ctx context.Context, c *admin.Client) (err error) {
				for _, t := range types {
					if out[t], err = c.Samples(ctx, admin.SampleQuery{Type: t, Last: d}); err != nil {
						return err
					}
				}
				return nil
			})
			return out, err
		})
}
