//go:build unix

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/chaos/proxy"
	"github.com/txoutbox/outbox/schema"
)

// faults are all that there are, with how often they are chosen.
func faults() []fault {
	return []fault{
		{"kill", 40, "SIGKILL of a relay, at any moment", (*arena).killRelay},
		{"point", 20, "SIGKILL of a relay at a point of its loop: a claim sent or answered, the journal, the handler, the end of a claim, COMMIT sent or answered, bookkeeping", (*arena).killAtPoint},
		{"terminate", 12, "pg_terminate_backend of some of the app's sessions", (*arena).terminate},
		{"backend", 2, "SIGKILL of a backend: the server restarts by itself", (*arena).killBackend},
		{"crash", 4, "immediate stop of the server, and start", (*arena).crash},
		{"commit", 30, "the request or the reply of a COMMIT is lost", (*arena).cutCommit},
		{"cut", 8, "a connection is cut, at once or some bytes later", (*arena).cut},
		{"silence", 2, "a connection falls silent", (*arena).silence},
		{"delay", 3, "all answers come late", (*arena).delay},
		{"freeze", 1, "SIGSTOP of a relay, past its lease", (*arena).freeze},
		{"failover", 2, "the primary is killed and its synchronous standby promoted", (*arena).failover},
		{"connections", 1, "the database takes few connections", (*arena).fewConnections},
		{"xmin", 1, "a transaction keeps its snapshot", (*arena).holdSnapshot},
		{"notify", 3, "a LISTEN connection falls silent", (*arena).loseNotifications},
		{"poison", 2, "tasks that end their process or connection", (*arena).enqueuePoison},
		{"misbehaving", 3, "tasks whose handlers misbehave", (*arena).enqueueMisbehaving},
		{"rolling", 1, "SIGTERM of one relay after the other, each starts again and migrates", (*arena).rollingRestart},
		{"drain", 4, "SIGTERM of a relay", (*arena).drain},
		{"operator", 6, "tasks are cancelled, dead letters redriven, types paused", (*arena).operate},
		{"disk", 2, "the disk is full for a while (a small tmpfs of the run's own; needs root)", (*arena).fillDisk},
		{"clock", 4, "the server's clock steps (needs libfaketime)", (*arena).stepClock},
	}
}

func (a *arena) someRelay(r *rand.Rand) *seat { return a.relays[r.IntN(len(a.relays))] }

func (a *arena) killRelay(r *rand.Rand) (string, error) {
	s := a.someRelay(r)
	p := s.running()
	select {
	case <-p.ended:
		return "", nil
	default:
	}
	p.kill()
	return s.config.Name, nil
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

// patience is how long a trap waits for somebody to come by.
const patience = 1500 * time.Millisecond

// spring sets a trap at a proxy and waits for its catch.
func spring(p *proxy.Proxy, t proxy.Trap) bool {
	caught := make(chan struct{})
	then := t.Then
	t.Then = func() {
		if then != nil {
			then()
		}
		close(caught)
	}
	p.Set(&t)
	select {
	case <-caught:
		return true
	case <-time.After(patience):
		if p.Remove(&t) {
			return false
		}
		<-caught
		return true
	}
}

func (a *arena) killAtPoint(r *rand.Rand) (string, error) {
	var names []string
	for name := range points {
		names = append(names, name)
	}
	slices.Sort(names)
	name, s := names[r.IntN(len(names))], a.someRelay(r)
	trap := points[name]
	trap.Then = func() { s.running().kill() }
	a.aside("point", func() (string, error) {
		if !spring(s.proxy, trap) {
			return "", nil
		}
		return s.config.Name + ", " + name, nil
	})
	return "", nil
}

func (a *arena) cutCommit(r *rand.Rand) (string, error) {
	how := []proxy.How{proxy.LoseReply, proxy.LoseReply, proxy.LoseRequest, proxy.LoseBoth}[r.IntN(4)]
	s, of := a.someRelay(r), "INSERT INTO effect"
	switch r.IntN(4) {
	case 0:
		s, of = a.producers[r.IntN(len(a.producers))], "INSERT INTO business"
	case 1:
		of = "/* outbox: "
	}
	a.aside("commit", func() (string, error) {
		if !spring(s.proxy, proxy.Trap{Catches: proxy.Commit(of), How: how}) {
			return "", nil
		}
		return fmt.Sprintf("%s, a COMMIT after %s, how %d", s.config.Name, of, how), nil
	})
	return "", nil
}

func (a *arena) anyProxy(r *rand.Rand) *proxy.Proxy {
	all := append(slices.Clone(a.relays), a.producers...)
	return all[r.IntN(len(all))].proxy
}

func (a *arena) cut(r *rand.Rand) (string, error) {
	after := r.IntN(2) * r.IntN(2000)
	if !a.anyProxy(r).Cut(after) {
		return "", nil
	}
	return fmt.Sprintf("after %d bytes", after), nil
}

func (a *arena) silence(r *rand.Rand) (string, error) {
	if !a.someRelay(r).proxy.Silence(false) {
		return "", nil
	}
	return "a connection", nil
}

func (a *arena) loseNotifications(r *rand.Rand) (string, error) {
	if !a.someRelay(r).proxy.Silence(true) {
		return "", nil
	}
	return "a LISTEN connection", nil
}

func (a *arena) delay(r *rand.Rand) (string, error) {
	p, d := a.anyProxy(r), time.Duration(20+r.IntN(200))*time.Millisecond
	p.Delay(d)
	a.lasts(time.Duration(r.IntN(4000))*time.Millisecond, func() { p.Delay(0) })
	return d.String(), nil
}

func (a *arena) freeze(r *rand.Rand) (string, error) {
	s, d := a.someRelay(r), 12*time.Second+time.Duration(r.IntN(4000))*time.Millisecond
	p := s.running()
	p.freeze()
	a.lasts(d, p.thaw)
	return fmt.Sprint(s.config.Name, " for ", d), nil
}

// drainWithin is what a relay may take to end after SIGTERM: its DrainTimeout, and 25 s as Run says.
const drainWithin = 40 * time.Second

func (a *arena) drain(r *rand.Rand) (string, error) {
	s := a.someRelay(r)
	a.aside("drain", func() (string, error) {
		a.terminateRelay(s)
		return s.config.Name, nil
	})
	return "", nil
}

// terminateRelay asks a relay to end. It is killed now and then meanwhile, or ends by poison, so its exit says little.
func (a *arena) terminateRelay(s *seat) {
	p := s.running()
	if err := p.terminate(drainWithin); err != nil && errors.Is(err, errStays) {
		a.violate("relays that did not end within 40 s of SIGTERM", s.config.Name)
	}
}

func (a *arena) rollingRestart(*rand.Rand) (string, error) {
	a.aside("rolling", func() (string, error) {
		for _, s := range a.relays {
			a.terminateRelay(s)
			db, err := sql.Open("postgres", s.config.URL)
			if err != nil {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			_ = schema.Migrate(ctx, db) // by a process that starts; it may meet the next fault
			cancel()
			_ = db.Close()
		}
		return "all", nil
	})
	return "", nil
}

// enqueue adds a task of the harness's own. A server that is down, or on its way, gets it later: each
// attempt is a task of its own, as the one before may have committed.
func (a *arena) enqueue(kind outbox.TaskType[work], w work) error {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		if err := a.enqueueOnce(kind, w); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// enqueueOnce notes the task as a producer does.
func (a *arena) enqueueOnce(kind outbox.TaskType[work], w work) error {
	l, err := openLedger(filepath.Join(a.dir, "monkey.ledger"))
	if err != nil {
		return err
	}
	defer l.f.Close()
	a.mu.Lock()
	a.counts["tasks of the monkey"]++
	n := a.counts["tasks of the monkey"]
	a.mu.Unlock()
	w.K = fmt.Sprintf("monkey-%d", n)
	if err := l.add(entry{N: n, Outcome: "intent", Tasks: []string{kind.Name() + ":" + w.K}}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err = a.admin(ctx, func(db *sql.DB) error {
		return outbox.InTx(ctx, db, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO business (k) VALUES ($1)`, w.K); err != nil {
				return err
			}
			_, err := kind.Enqueue(ctx, tx, w)
			return err
		})
	})
	if err != nil {
		return err // an intent without an outcome is unknown
	}
	return l.add(entry{N: n, Outcome: "acked"})
}

func (a *arena) enqueuePoison(r *rand.Rand) (string, error) {
	how := poisons[r.IntN(len(poisons))]
	return how, a.enqueue(typePoison, work{How: how})
}

func (a *arena) enqueueMisbehaving(r *rand.Rand) (string, error) {
	if r.IntN(10) == 0 {
		how := commits[r.IntN(len(commits))]
		return how, a.enqueue(typeCommits, work{How: how})
	}
	how := misbehaviors[r.IntN(len(misbehaviors))]
	return how, a.enqueue(typeMisbehaves, work{How: how})
}

// operate does what a person at a dashboard does.
func (a *arena) operate(r *rand.Rand) (what string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err = a.admin(ctx, func(db *sql.DB) error {
		switch r.IntN(3) {
		case 0:
			what = "cancel"
			rows, err := db.QueryContext(ctx, `SELECT task_id, payload ->> 'k' FROM outbox.task WHERE task_type = 'CANCELABLE' LIMIT 50`)
			if err != nil {
				return err
			}
			defer rows.Close()
			ks := map[int64]string{}
			for rows.Next() {
				var id int64
				var k string
				if err := rows.Scan(&id, &k); err != nil {
					return err
				}
				ks[id] = k
			}
			if err := rows.Err(); err != nil {
				return err
			}
			for id, k := range ks {
				err := outbox.InTx(ctx, db, func(tx *sql.Tx) error {
					result, err := outbox.Cancel(ctx, tx, id)
					if err == nil {
						_, err = tx.ExecContext(ctx, `INSERT INTO canceled VALUES ($1, $2)`, k, result.String())
					}
					return err
				})
				if err != nil {
					return err
				}
			}
		case 1:
			what = "redrive"
			client, err := admin.New(db, admin.Options{})
			if err == nil {
				_, err = client.EveryPage(ctx, client.Redrive, admin.Filter{Type: typeMisbehaves.Name()}, 1000)
			}
			return err
		default:
			kind := []string{"TX", "BATCH", "LEASED", "ORDERED"}[r.IntN(4)]
			what = "pause " + kind
			client, err := admin.New(db, admin.Options{})
			if err == nil {
				err = client.PauseType(ctx, kind)
			}
			a.lasts(time.Duration(500+r.IntN(1500))*time.Millisecond, func() { a.resume(kind) })
			return err
		}
		return nil
	})
	if err != nil { // the server is on its way: no fault of the fault's
		return "", nil
	}
	return what, nil
}

func (a *arena) resume(kind string) {
	for range 100 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := a.admin(ctx, func(db *sql.DB) error {
			client, err := admin.New(db, admin.Options{})
			if err != nil {
				return err
			}
			return client.ResumeType(ctx, kind)
		})
		cancel()
		if err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	a.complain("the type %s could not be resumed", kind)
}
