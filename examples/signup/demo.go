package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// demo signs up users through HTTP while relay processes are killed, then counts.
type demo struct {
	signUps int
	kills   int           // spread at random over the sign-ups
	relays  int           // processes at a time
	lasting time.Duration // of the sign-ups
	linger  time.Duration // what each task takes at most
	seed    uint64
}

// runDemo is -demo: three relays, twelve kills. The lease of a killed relay runs for 10 s, so it takes
// about that long after the last kill until all is done.
func runDemo(ctx context.Context, cfg config, out io.Writer) (err error) {
	d := demo{signUps: 1000, kills: 12, relays: 3, lasting: 18 * time.Second, linger: 200 * time.Millisecond, seed: cfg.seed}
	db, err := openDatabase(ctx, cfg.databaseURL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	found, err := d.run(ctx, db, out)
	if err != nil {
		return err
	}
	found.print(out)
	return found.check()
}

func (d demo) run(ctx context.Context, db *database, out io.Writer) (found *outcome, err error) {
	start := time.Now()
	if err := d.checkEmpty(ctx, db); err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "%d users sign up, %d relay processes work, %d times one of them is killed; seed %d\n", d.signUps, d.relays, d.kills, d.seed)
	inbox, err := newSink(nil)
	if err != nil {
		return nil, err
	}
	defer inbox.close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	logger := slog.New(slog.DiscardHandler)
	none, err := noTraces()
	if err != nil {
		return nil, err
	}
	web := startWeb(listener, &site{users: &users{db: db.DB, traces: none, hashCost: bcrypt.MinCost}, tasks: &tasks{db: db.DB}, sink: inbox, traces: none, log: logger}, logger)
	defer web.stop()

	relays, err := startFleet(db.DB, childSettings{DatabaseURL: db.url, MailServer: inbox.address(), Linger: d.linger}, d.relays)
	if err != nil {
		return nil, err
	}
	if err := d.disturb(ctx, relays, pageURL(listener.Addr()), out); err != nil {
		return nil, errors.Join(err, relays.stop())
	}
	fmt.Fprintln(out, "all are signed up; mails of killed relays are taken over 10 s after the kill")
	err = untilIdle(ctx, db.DB, 40*time.Second)
	if err := errors.Join(err, relays.stop()); err != nil {
		return nil, err
	}
	return d.count(ctx, db.DB, inbox, relays.killed, time.Since(start))
}

// disturb signs up and kills at the same time; the first error ends both.
func (d demo) disturb(ctx context.Context, relays *fleet, url string, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, work := range []func() error{
		func() error { return d.signUpAll(ctx, url) },
		func() error { return d.killSome(ctx, relays, out) },
	} {
		wg.Go(func() {
			if err := work(); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func (d demo) killSome(ctx context.Context, relays *fleet, out io.Writer) error {
	random := rand.New(rand.NewPCG(d.seed, 0))
	moments := make([]time.Duration, d.kills)
	for n := range moments {
		moments[n] = time.Duration(random.Int64N(int64(d.lasting * 9 / 10))) // before the sign-ups end
	}
	slices.Sort(moments)
	start := time.Now()
	for n, moment := range moments {
		if err := wait(ctx, moment-time.Since(start)); err != nil {
			return err
		}
		if err := relays.killOne(ctx, random.IntN(len(relays.members))); err != nil {
			return err
		}
		fmt.Fprintf(out, "kill %d of %d: %d tasks were running\n", n+1, d.kills, relays.killed[n])
	}
	return nil
}

// signUpAll signs up at an even pace, with a few clients at a time.
func (d demo) signUpAll(ctx context.Context, url string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	numbers := make(chan int)
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for n := range numbers {
				if err := postSignUp(ctx, url, fmt.Sprintf("user-%d@example.com", n)); err != nil {
					cancel(fmt.Errorf("sign-up %d: %w", n, err))
				}
			}
		})
	}
	pace := time.NewTicker(d.lasting / time.Duration(d.signUps))
	defer pace.Stop()
	for n := 0; n < d.signUps && ctx.Err() == nil; n++ {
		select {
		case <-pace.C:
			numbers <- n
		case <-ctx.Done():
		}
	}
	close(numbers)
	clients.Wait()
	return context.Cause(ctx)
}

func postSignUp(ctx context.Context, url, email string) error {
	body := fmt.Sprintf(`{"email": %q, "password": "correct horse"}`, email)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/signup", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusNoContent {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		return fmt.Errorf("%s: %s", res.Status, text)
	}
	return nil
}
