//go:build unix

package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
)

// mostWaiting is the backlog at which producers wait.
const mostWaiting = 20_000

var errRollBack = errors.New("chaos: the app rolls back")

type producer struct {
	name string
	pool pools
	dir  string // of the ledger
	r    *rand.Rand
	n    int            // of the transaction
	made int            // tasks
	seqs map[string]int // the last of each ordering key
}

// produce enqueues tasks, in transactions with business rows, until ctx ends or there are enough.
func produce(ctx context.Context, c Config, pool pools) error {
	p := &producer{name: c.Name, pool: pool, dir: c.Dir, r: rand.New(rand.NewPCG(c.Seed, 1)), seqs: map[string]int{}}
	for ctx.Err() == nil && (c.Tasks == 0 || p.made < c.Tasks) {
		if p.n%20 == 0 && p.full(ctx) {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err := p.transaction(); err != nil {
			return err
		}
	}
	return nil
}

// full reports whether the backlog is large, or is not to be known.
func (p *producer) full(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var n int
	const waiting = `SELECT count(*) FROM (SELECT FROM outbox.task LIMIT $1) t`
	err := p.pool.db.QueryRowContext(ctx, waiting, mostWaiting).Scan(&n)
	return err != nil || n >= mostWaiting
}

// planned is a task that a transaction is to enqueue.
type planned struct {
	task    outbox.TaskSpec
	payload Payload
	due     time.Duration
}

func (p *producer) plan(i int) planned {
	payload := Payload{K: fmt.Sprintf("%s-%d-%d", p.name, p.n, i)}
	if p.r.IntN(10) == 0 {
		payload.Fail = 1 + p.r.IntN(2)
	}
	var opts []outbox.Option
	var due time.Duration
	kind := typeTx
	switch n := p.r.IntN(100); {
	case n < 4:
		kind = typeExpiring
		opts = append(opts, outbox.ExpiresAfter(time.Duration(5+p.r.IntN(500))*time.Millisecond))
	case n < 7: // ten transactions of each producer share a key
		kind, payload.Period = typePeriod, fmt.Sprint("period-", p.n/10)
		opts = append(opts, outbox.Unique(payload.Period, outbox.For(1000*time.Hour)))
	case n < 22:
	case n < 30:
		kind, payload.Key = typeGrouped, fmt.Sprint("key-", p.r.IntN(groupKeys))
		opts = append(opts, outbox.GroupBy(payload.Key), outbox.After(time.Duration(p.r.IntN(10)/9)*time.Second))
	case n < 35:
		due = time.Duration(100+p.r.IntN(2000)) * time.Millisecond
		opts = append(opts, outbox.After(due))
	case n < 55:
		kind = typeBatch
	case n < 75:
		kind = []outbox.TaskType[Payload]{typeLeased, typeLeasedRotated}[p.n%2]
	case n < 85:
		kind = typePlain
	case n < 90:
		kind, payload.Entity = typeKeyed, 1+p.r.IntN([]int{busyEntities, entities}[p.r.IntN(2)])
		opts = append(opts, outbox.Unique(fmt.Sprint("entity-", payload.Entity)))
	case n < 93:
		kind = typeOrdered
		payload.Seq, opts = p.ordered(fmt.Sprint(p.name, "-", p.r.IntN(20)))
	default:
		kind = typeEvent
		payload.Seq, opts = p.ordered(fmt.Sprint(p.name, "-to-", p.r.IntN(Targets)))
	}
	return planned{kind.New(payload, opts...), payload, due}
}

// ordered is the next number of an ordering key, and its option.
func (p *producer) ordered(key string) (seq int, opts []outbox.Option) {
	p.seqs[key]++
	return p.seqs[key], []outbox.Option{outbox.OrderedBy(key)}
}

// transaction makes one: it commits, rolls back (5 %) or is slow to commit (2 %).
func (p *producer) transaction() error {
	p.n++
	fate := p.r.IntN(100)
	all := make([]planned, 1+p.r.IntN(1+p.r.IntN(40)))
	var intent []string
	for i := range all {
		all[i] = p.plan(i)
		intent = append(intent, all[i].task.Type+":"+all[i].payload.K)
	}
	p.made += len(all)
	if err := Intend(p.dir, p.name, p.n, intent...); err != nil {
		return err
	}
	err := p.pool.inTx(context.Background(), func(tx outbox.Querier) error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := p.write(ctx, tx, all); err != nil {
			return err
		}
		switch {
		case fate < 5:
			return errRollBack
		case fate < 7: // others commit meanwhile, with higher ids
			time.Sleep(time.Duration(p.r.IntN(2500)) * time.Millisecond)
		}
		return nil
	})
	outcome := Acked
	switch {
	case errors.Is(err, outbox.ErrCommitUnknown):
		outcome = Unknown
	case err != nil:
		outcome = RolledBack
		if !errors.Is(err, errRollBack) {
			fmt.Println("enqueue:", err)
			time.Sleep(100 * time.Millisecond)
		}
	}
	return End(p.dir, p.name, p.n, outcome)
}

// write writes business rows and tasks: one by one, or all at once.
func (p *producer) write(ctx context.Context, tx outbox.Querier, all []planned) error {
	var ks []string
	var dues []sql.NullInt64
	var tasks []outbox.TaskSpec
	var changed []int
	for _, t := range all {
		ks = append(ks, t.payload.K)
		dues = append(dues, sql.NullInt64{Int64: t.due.Microseconds(), Valid: t.due > 0})
		tasks = append(tasks, t.task)
		if t.payload.Entity > 0 {
			changed = append(changed, t.payload.Entity)
		}
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO business (k, due)
		SELECT k, now() + due * interval '1 microsecond' FROM unnest($1::text[], $2::bigint[]) AS t (k, due)`,
		pq.Array(ks), pq.Array(dues))
	if err != nil {
		return err
	}
	slices.Sort(changed) // the order prevents deadlocks
	for _, id := range changed {
		if _, err := tx.ExecContext(ctx, `UPDATE entity SET version = version + 1 WHERE id = $1`, id); err != nil {
			return err
		}
	}
	if p.n%2 == 0 {
		_, err = outbox.EnqueueMany(ctx, tx, tasks)
		return err
	}
	for _, t := range tasks {
		if _, err := outbox.Enqueue(ctx, tx, t.Type, t.Payload, t.Options...); err != nil {
			return err
		}
	}
	return nil
}

// The outcomes of a transaction.
const (
	Acked      = "acked"
	RolledBack = "rolled_back"
	Unknown    = "unknown"
	intended   = "intent"
)

// record appends a line to a file of a run, which outlives processes and servers.
func record(dir, file string, sync bool, fields ...any) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := fmt.Fprintln(f, fields...); err != nil || !sync {
		return err
	}
	return f.Sync()
}

// recorded are the lines of a file, as fields, of which each has some at least. There may be no file.
func recorded(path string, some int) (lines [][]string, err error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < some {
			return nil, fmt.Errorf("%s: a line is not whole: %q", path, line)
		}
		lines = append(lines, fields)
	}
	return lines, nil
}

// Intend records, on disk, the tasks that transaction n of a producer is about to enqueue: each as its
// type, a colon and K.
func Intend(dir, producer string, n int, tasks ...string) error {
	return record(dir, producer+".ledger", true, n, intended, strings.Join(tasks, " "))
}

// End records the outcome of transaction n.
func End(dir, producer string, n int, outcome string) error {
	return record(dir, producer+".ledger", false, n, outcome)
}

// Told is what a producer knows of a task.
type Told struct{ K, Kind, Outcome string }

// ReadLedgers returns the outcome of each task. An intent without an outcome is unknown: its producer
// was killed.
func ReadLedgers(dir string) (all []Told, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.ledger"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		lines, err := recorded(path, 2)
		if err != nil {
			return nil, err
		}
		outcomes := map[string]string{}
		for _, line := range slices.Backward(lines) { // the outcome before its intent
			n, what := line[0], line[1]
			if what != intended {
				outcomes[n] = what
				continue
			}
			outcome := outcomes[n]
			if outcome == "" {
				outcome = Unknown
			}
			for _, task := range line[2:] {
				kind, k, _ := strings.Cut(task, ":")
				all = append(all, Told{k, kind, outcome})
			}
		}
	}
	return all, nil
}

const (
	callsFile   = "calls"
	startsFile  = "starts"
	crowdedFile = "crowded"
	begunFile   = "begun"
)

// ReadBegunLate returns the tasks whose first run began after they had expired, by K.
func ReadBegunLate(dir string) (late []string, err error) {
	lines, err := recorded(filepath.Join(dir, begunFile), 2)
	begun := map[string]bool{}
	for _, line := range lines {
		if k := line[0]; !begun[k] {
			if begun[k] = true; line[1] == "true" {
				late = append(late, k)
			}
		}
	}
	return late, err
}

// ReadCrowded returns the grouped tasks that found all places of their key taken, by key and K.
func ReadCrowded(dir string) (all []string, err error) {
	lines, err := recorded(filepath.Join(dir, crowdedFile), 2)
	for _, line := range lines {
		all = append(all, strings.Join(line, ", "))
	}
	return all, err
}

// ReadCalls returns how often the outside world was called with each K.
func ReadCalls(dir string) (map[string]int, error) {
	lines, err := recorded(filepath.Join(dir, callsFile), 1)
	calls := map[string]int{}
	for _, line := range lines {
		calls[line[0]]++
	}
	return calls, err
}

// Poisoned is a poison task and its starts in all relays.
type Poisoned struct {
	How    string
	Starts []time.Time
}

// ReadStarts returns the poison tasks that were started, by K.
func ReadStarts(dir string) (map[string]*Poisoned, error) {
	lines, err := recorded(filepath.Join(dir, startsFile), 3)
	all := map[string]*Poisoned{}
	for _, line := range lines {
		k, how := line[0], line[1]
		at, err := strconv.ParseInt(line[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the file of starts: %w", err)
		}
		if all[k] == nil {
			all[k] = &Poisoned{How: how}
		}
		all[k].Starts = append(all[k].Starts, time.Unix(0, at))
	}
	return all, err
}
