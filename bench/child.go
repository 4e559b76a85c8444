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

// Other processes are this program again, told apart by a first argument. A child reads its settings from its standard input, where
// no process list shows them, and then commands. When the input ends the parent is dead or wants its end: the child exits.
const childArgument = "relay-child"

func isChild() bool { return len(os.Args) > 1 && os.Args[1] == childArgument }

// childSettings are what a child runs: relays of ours on each of the URLs, or a River client.
type childSettings struct {
	URLs   []string
	Relays int // on each URL
	Set    relaySettings
	River  *river.Settings
	Raw    bool // a raw listener
	Tell   bool // each handler's start
}

// word is what a child says: that it runs, that a handler started, or what it has used.
type word struct {
	Ready bool  `json:"ready,omitempty"`
	N     int   `json:"n,omitempty"` // of the payload
	At    int64 `json:"at,omitempty"`
	Usage *gone `json:"usage,omitempty"`
}

// gone is what a child's process has used and done so far.
type gone struct {
	CPU    time.Duration `json:"cpu"`
	RSS    float64       `json:"rss"`  // MB
	Peak   float64       `json:"peak"` // MB
	Done   int64         `json:"done"`
	Allocs uint64        `json:"allocs"`
}

// child is the main function of a child; it returns the exit code.
func child(in io.Reader, out io.Writer) int {
	signal.Ignore(os.Interrupt) // a Ctrl-C reaches parent and children; the parent decides
	if err := runChild(in, out); err != nil {
		fmt.Fprintln(os.Stderr, "bench: child:", err)
		return 1
	}
	return 0
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
			tell(word{Usage: goneSoFar(done.Load())})
		}
	}
}

func goneSoFar(done int64) *gone {
	u := usage()
	return &gone{CPU: u.cpu, RSS: procMB("VmRSS"), Peak: procMB("VmHWM"), Done: done, Allocs: u.mallocs}
}
