//go:build unix

package main

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
)

// runs makes as many runs as asked, and prints their reports.
func runs(ctx context.Context, o options) (passed bool, err error) {
	passed = true
	for i := range o.slices {
		one := o
		one.seed += uint64(i)
		r, err := run(ctx, one)
		if err != nil {
			return false, err
		}
		fmt.Print(r)
		passed = passed && r.passed()
	}
	return passed, nil
}

// run is one run from its beginning to its verdict. The files of a run that does not pass stay.
func run(ctx context.Context, o options) (r *report, err error) {
	dir, err := os.MkdirTemp("", "outbox-chaos-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the server may be another user
		return nil, err
	}
	a, err := newArena(ctx, o, dir)
	defer func() {
		a.close()
		switch {
		case ctx.Err() != nil || r != nil && r.passed():
			_ = os.RemoveAll(dir)
		case err != nil:
			err = fmt.Errorf("%w; files: %s", err, dir)
		}
	}()
	if err != nil {
		return nil, err
	}
	r = a.report
	inject(ctx, a, o)
	a.heal()
	healed := time.Now()
	for _, s := range a.producers {
		if err := s.stop(time.Minute); err != nil {
			a.violate("producers that did not end", fmt.Sprint(s.name, ": ", err))
		}
	}
	if fakesClock(o) {
		if err := setClock(a, 0); err != nil {
			return nil, err
		}
		wait(ctx, 2*time.Second) // each backend looks at the file once a second
	}
	if err := hasten(ctx, a, o); err != nil {
		return nil, err
	}
	workOff(ctx, a, o)
	if err := stillFires(ctx, a, o); err != nil {
		return nil, err
	}
	if err := removeDamaged(a); err != nil {
		return nil, err
	}
	r.workedOff = time.Since(healed)
	if err := examples(a, idleChecks); err != nil {
		return nil, err
	}
	for _, s := range a.relays {
		if err := s.stop(drainWithin); err != nil {
			a.violate("relays that did not end in order", fmt.Sprint(s.name, ": ", err))
		}
		a.count("starts of relays", s.starts)
	}
	if err := check(a, o); err != nil {
		return nil, err
	}
	r.took = time.Since(a.began)
	return r, ctx.Err()
}

// workOff waits until no task is left, and no run in the journal. It gives up when their number
// does not fall for a while.
func workOff(ctx context.Context, a *arena, o options) {
	patience := o.patience
	if fakesClock(o) {
		patience *= 2 // leases and backoffs may lie in the server's future
	}
	least, progress := -1, time.Now()
	for ctx.Err() == nil && time.Since(progress) < patience {
		var left int
		err := a.row(&left, `SELECT (SELECT count(*) FROM outbox.task t WHERE task_type <> 'TICK'
			AND NOT EXISTS (SELECT FROM damaged d WHERE d.task_id = t.task_id AND t.state = 'scheduled'))
			+ (SELECT count(*) FROM outbox.running)`)
		switch {
		case err != nil:
		case left == 0:
			return
		case least < 0 || left < least:
			least, progress = left, time.Now()
		}
		wait(ctx, 200*time.Millisecond)
	}
}

// hasten lets tasks run now that a clock which was ahead has put off by a day, as an operator would.
func hasten(ctx context.Context, a *arena, o options) error {
	if !o.has("ahead") {
		return nil
	}
	var ids []int64
	err := a.row(pq.Array(&ids), `SELECT array_agg(task_id) FROM outbox.task
		WHERE state = 'scheduled' AND run_at > now() + interval '1 hour'
		AND task_id NOT IN (SELECT task_id FROM damaged)`)
	if err != nil {
		return err
	}
	a.count("tasks that a clock put off", len(ids))
	return outbox.InTx(ctx, a.db, func(tx *sql.Tx) error {
		for _, id := range ids {
			if _, err := outbox.RunNow(ctx, tx, id); err != nil {
				return err
			}
		}
		return nil
	})
}

// stillFires waits until the schedule has fired twice more.
func stillFires(ctx context.Context, a *arena, o options) error {
	first, n := -1, 0
	for began := time.Now(); ctx.Err() == nil && time.Since(began) < o.patience; wait(ctx, 200*time.Millisecond) {
		if err := a.row(&n, `SELECT count(*) FROM tick`); err != nil {
			return err
		}
		if first < 0 {
			first = n
		}
		if n >= first+2 {
			return nil
		}
	}
	a.violate("schedules that stopped", fmt.Sprint("tick, after ", n, " firings"))
	return nil
}

// removeDamaged removes the tasks that cannot be read, once it has seen that they are set aside.
func removeDamaged(a *arena) error {
	var aside []string
	err := a.row(pq.Array(&aside), `SELECT array_agg(format('%s %s %s: %s', task_id, task_type, state, last_error))
		FROM outbox.task JOIN damaged USING (task_id) WHERE state <> 'scheduled' OR last_error IS NULL OR attempt > 0`)
	if err != nil {
		return err
	}
	a.violate("unreadable tasks that are not set aside", aside...)
	return a.do(`DELETE FROM outbox.task WHERE task_id IN (SELECT task_id FROM damaged)`)
}

// report is what a run did and found. Its methods are safe for concurrent use until the run ends.
type report struct {
	options   string
	files     string
	began     time.Time
	took      time.Duration
	workedOff time.Duration // from the last fault to the last task
	log       *os.File      // of faults

	mu     sync.Mutex
	done   map[string]int // faults
	failed map[string]int // faults that could not be injected
	counts map[string]int
	noise  []string // what the harness itself could not do
	wrong  map[string][]string
}

func newReport(o options, files string, log *os.File) *report {
	return &report{options: o.String(), files: files, began: time.Now(), log: log,
		done: map[string]int{}, failed: map[string]int{}, counts: map[string]int{}, wrong: map[string][]string{}}
}

func (r *report) passed() bool { return len(r.wrong) == 0 }

// A line of the report with this prefix names a kind of violation.
const wrongPrefix = "WRONG: "

// most is how many examples of a violation are printed.
const most = 5

func (r *report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "chaos %s\ntook %v, of which %v to work off what was left\n",
		r.options, r.took.Round(time.Millisecond), r.workedOff.Round(time.Millisecond))
	section := func(title string, of map[string]int) {
		var all []string
		for _, name := range slices.Sorted(maps.Keys(of)) {
			all = append(all, fmt.Sprint(name, " ", of[name]))
		}
		fmt.Fprintf(&b, "%s: %s\n", title, strings.Join(all, ", "))
	}
	section("faults", r.done)
	section("counts", r.counts)
	for _, n := range r.noise {
		fmt.Fprintf(&b, "noise: %s\n", n)
	}
	for _, kind := range slices.Sorted(maps.Keys(r.wrong)) {
		examples := r.wrong[kind]
		fmt.Fprintf(&b, "%s%s: %d: %s\n", wrongPrefix, kind, len(examples),
			strings.Join(examples[:min(most, len(examples))], "; "))
	}
	if r.passed() {
		b.WriteString("passed: 0 lost, 0 unexpected, 0 duplicated, 0 ghosts, 0 over their limit, 0 begun late, " +
			"0 in two places, 0 counter drift, 0 leaks\n")
	} else {
		fmt.Fprintf(&b, "FAILED; the seed repeats the schedule of faults\nfiles: %s\n", r.files)
	}
	return b.String()
}

// happened counts a fault and writes it to the log, unless there was nothing to break.
func (r *report) happened(fault, what string, err error) {
	if what == "" && err == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed[fault]++
		r.noise = append(r.noise, fmt.Sprintf("%s: %v", fault, err))
		what = "failed: " + err.Error()
	} else {
		r.done[fault]++
	}
	_, _ = fmt.Fprintf(r.log, "%v %s: %s\n", time.Since(r.began).Round(time.Millisecond), fault, what)
}

// count adds n and returns the sum.
func (r *report) count(name string, n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[name] += n
	return r.counts[name]
}

func (r *report) complain(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noise = append(r.noise, fmt.Sprintf(format, args...))
}

// violate records examples of something that must not happen.
func (r *report) violate(kind string, examples ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(examples) > 0 {
		r.wrong[kind] = append(r.wrong[kind], examples...)
	}
}
