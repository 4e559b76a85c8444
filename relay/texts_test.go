package relay_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

var (
	aComment = regexp.MustCompile(`(?s)/\*.*?\*/`)
	aText    = regexp.MustCompile(`'(?:[^']|'')*'`)
	aNumber  = regexp.MustCompile(`\b[0-9]+\b`)
	oneOf    = regexp.MustCompile(`(?s)(?:'(?:[^']|'')*'|[^;'])+`)
	hasPlan  = regexp.MustCompile(`(?i)^(SELECT|INSERT|UPDATE|DELETE|WITH)\b`)
)

// entries are the statements of a message as pg_stat_statements tells them apart: before PostgreSQL 17
// it replaces constants only where there is a plan.
func entries(message string) (out []string) {
	for _, one := range oneOf.FindAllString(message, -1) {
		one = strings.TrimSpace(aComment.ReplaceAllString(one, ""))
		if hasPlan.MatchString(one) {
			one = aNumber.ReplaceAllString(aText.ReplaceAllString(one, "?"), "?")
		}
		if one != "" {
			out = append(out, one)
		}
	}
	return out
}

// What the relay sends has few texts, whatever tasks it runs: others' statements keep their place in
// pg_stat_statements.
func TestManyTasksOfEachKindTakeFewStatementTexts(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "postgres")
	var mu sync.Mutex
	seen := map[string]bool{}
	f := &faulty{sent: func(text string) {
		mu.Lock()
		defer mu.Unlock()
		for _, one := range entries(text) {
			seen[one] = true
		}
	}}
	pool := db.through(t, func(c driver.Connector) driver.Connector { return f.wrap(c) })
	const each = 150
	errFirst := errors.New("the first attempt")
	act := func(fails bool) relaytest.Handle[payload] {
		return func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
			some := handlers.BatchResult{}
			for _, task := range tasks {
				if fails && task.Attempt == 1 && task.Payload.N%2 == 0 {
					some[task.ID] = errFirst
				}
			}
			switch {
			case len(some) == 0:
				return nil
			case tasks[0].Type == "BATCH":
				return some
			}
			return errFirst
		}
	}
	reg := handlers.New()
	kinds := []struct {
		name, kind string
		fails      bool
		opts       []handlers.Option
	}{
		{name: "TX", kind: "tx"},
		{name: "TX_FAILS", kind: "tx", fails: true},
		{name: "KEPT", kind: "tx", opts: []handlers.Option{handlers.Retention(time.Hour)}},
		{name: "BATCH", kind: "batch", fails: true},
		{name: "GROUP", kind: "tx", fails: true, opts: []handlers.Option{handlers.GroupCommit(10, 0)}},
		{name: "LIMITED", kind: "tx", opts: []handlers.Option{handlers.MaxRunning(2)}},
		{name: "LEASED", kind: "leased", fails: true},
		{name: "COMPLETE", kind: "complete", fails: true},
	}
	for _, k := range kinds {
		relaytest.Register(reg, k.kind, k.name, 4, act(k.fails), append(k.opts, retrySoon())...)
		// Each task has a timeout of its own.
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, timeout_ms) SELECT $1, jsonb_build_object('n', n), 20000 + n
			FROM generate_series(1, $2::int) n`, k.name, each)
	}
	canceled := make(chan int64)
	relaytest.Register(reg,
		"tx", "CANCELED", 1, func(ctx context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
			canceled <- tasks[0].ID
			<-ctx.Done()
			return ctx.Err()
		})
	db.Enqueue(t, "CANCELED", 1)
	run(t, pool, reg, relay.Config{Workers: 8, PollInterval: 50 * time.Millisecond})
	db.cancel(t, int(<-canceled))
	db.Emptied(t, time.Minute)
	mu.Lock()
	defer mu.Unlock()
	if n := len(seen); n > each {
		texts := slices.Sorted(maps.Keys(seen))
		for i, one := range texts {
			texts[i] = one[:min(len(one), 120)]
		}
		t.Errorf("%d texts of statements for %d tasks of each of %d kinds, want %d at most:\n%s", n, each, len(kinds), each,
			strings.Join(texts[:min(n, 60)], "\n"))
	}
	db.Do(t, `TRUNCATE outbox.done_task`)
}
