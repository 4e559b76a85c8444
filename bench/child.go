package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox/bench/raw"
	"github.com/txoutbox/outbox/bench/river"
)

// runIfChild runs a child and ends the process, if this process is one.
func runIfChild() {
	if len(os.Args) < 2 || os.Args[1] != childArgument {
		return
	}
	signal.Ignore(os.Interrupt) // a Ctrl-C reaches parent and children; the parent decides
	if err := runChild(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench: child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runChild(in io.Reader, out io.Writer) (err error) {
	var set childSettings
	words := json.NewDecoder(in)
	if err := words.Decode(&set); err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	var mu sync.Mutex
	encoder := json.NewEncoder(out)
	tell := func(w word) {
		mu.Lock()
		defer mu.Unlock()
		_ = encoder.Encode(w)
	}
	var done atomic.Int64
	handle := func(n int, first load) {
		if at := time.Now().UnixNano(); set.Tell {
			tell(word{N: first.N, At: at})
		}
		done.Add(int64(n))
	}
	var stops []func() error
	defer func() {
		for _, stop := range stops {
			err = errors.Join(err, stop())
		}
	}()
	ctx := context.Background()
	for _, url := range set.URLs {
		for range set.Relays {
			stop, err := startRelay(ctx, url, set.Set, handle)
			if err != nil {
				return err
			}
			stops = append(stops, stop)
		}
		if set.River != nil {
			work := *set.River
			work.Handle = func(a river.Args) {
				handle(1, load{N: a.N})
				pause(ctx, set.Set.Pause)
			}
			stop, err := river.Start(ctx, url, work, nil)
			if err != nil {
				return err
			}
			stops = append(stops, stop)
		}
	}
	if set.Raw {
		stop, err := raw.Listen(ctx, set.URLs[0], taskType, func(payload string) {
			at := time.Now().UnixNano()
			var l load
			if json.Unmarshal([]byte(payload), &l) == nil {
				tell(word{N: l.N, At: at})
			}
		})
		if err != nil {
			return err
		}
		stops = append(stops, stop)
	}
	tell(word{Ready: true})
	for {
		var command string
		switch err := words.Decode(&command); {
		case err != nil || command == "stop":
			return nil
		case command == "usage":
			u := usageNow()
			tell(word{Usage: &u, Done: done.Load()})
		}
	}
}
