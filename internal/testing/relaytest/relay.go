package relaytest

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/relay"
	"go.uber.org/goleak"
)

// Records keeps what a relay logged.
type Records struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (r *Records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(p)
}

func (r *Records) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.String()
}

// Count says how often the text is in what was logged.
func (r *Records) Count(text string) int { return strings.Count(r.String(), text) }

// Want checks how often the text was logged. Health, counts and rows may be ahead of the log on a busy
// machine, so it waits for records that are missing.
func (r *Records) Want(t testing.TB, n int, text string) {
	t.Helper()
	for tries := 0; r.Count(text) < n && tries < 1000; tries++ {
		<-time.After(10 * time.Millisecond)
	}
	if got := r.Count(text); got != n {
		t.Errorf("%d records of %q, want %d\n%s", got, text, n, r.Tail())
	}
}

// Tail is the end of what was logged.
func (r *Records) Tail() string {
	s := r.String()
	return s[max(0, len(s)-8000):]
}

func logger(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Running is a relay in this process.
type Running struct {
	*relay.Relay
	Log   *Records
	Start func()
	Stop  func() // drains; called at the end of the test in any case

	goroutines goroutines
}

// Leaves says that the test leaves goroutines of handlers behind that are in the named function. To
// be called before Stop.
func (r *Running) Leaves(function string) { r.goroutines.left = append(r.goroutines.left, function) }

// workers is how many a relay has whose test chooses none: each opens a connection, which costs
// more than most tests do there.
const workers = 2

// Ended checks that what the test left behind has ended too.
func (r *Running) Ended(t testing.TB) {
	t.Helper()
	r.goroutines.left = nil
	r.goroutines.ended(t)
}

// Run starts a relay, which is drained at the end of the test.
func Run(t testing.TB, db *sql.DB, reg *handlers.Registry, config relay.Config) *Running {
	t.Helper()
	r := Prepare(t, db, reg, config)
	r.Start()
	return r
}

// Prepare is Run for a test that changes the relay before it calls Start.
func Prepare(t testing.TB, db *sql.DB, reg *handlers.Registry, config relay.Config) *Running {
	t.Helper()
	config.Workers = cmp.Or(config.Workers, workers)
	r := &Running{Log: &Records{}}
	config.Logger = logger(r.Log)
	var err error
	if r.Relay, err = relay.New(db, reg, config); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	r.Start = func() {
		go r.goroutines.in(ctx, func(ctx context.Context) { done <- r.Run(ctx) })
		t.Cleanup(r.Stop)
	}
	r.Stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
			r.goroutines.ended(t)
		case <-time.After(60 * time.Second):
			t.Error("Run did not return within 60 s of its context's end")
		}
		if t.Failed() {
			t.Logf("log of the relay:\n%s", r.Log.Tail())
		}
	})
	return r
}

// Once runs what is due, and returns what was logged. RunOnce ends with the first error of the
// database, also with that of a statement that a busy machine held up: it then runs again.
func Once(t testing.TB, db *sql.DB, reg *handlers.Registry, config relay.Config) string {
	t.Helper()
	log := &Records{}
	config.Workers = cmp.Or(config.Workers, workers)
	config.Logger = logger(log)
	r, err := relay.New(db, reg, config)
	if err != nil {
		t.Fatal(err)
	}
	for try := 1; ; try++ {
		var started goroutines
		started.in(t.Context(), func(ctx context.Context) { err = r.RunOnce(ctx) })
		if err == nil {
			started.ended(t)
		}
		late := errors.Is(err, relay.ErrNoHeartbeat) || errors.Is(err, context.DeadlineExceeded) && try == 1
		if !late || try == 5 {
			break
		}
		t.Logf("RunOnce ended on a busy machine: %v", err)
	}
	if err != nil {
		t.Fatalf("RunOnce: %v", err)
	}
	return log.String()
}

// Healthy waits until the relay's Health is nil.
func Healthy(t testing.TB, r *Running, when string) {
	t.Helper()
	defer func() {
		if err := r.Health(); t.Failed() && err != nil {
			t.Logf("Health %s: %v", when, err)
		}
	}()
	Eventually(t, time.Minute, "the relay is healthy "+when, func() bool { return r.Health() == nil })
}

// Eventually polls until ok, and fails the test when it has not become so in time: within three
// minutes, or within the time that is given where that is longer or OUTBOX_TEST_TIMING=1. It polls
// less often the longer it takes, as each poll is a query.
func Eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	if !Timing {
		within = max(within, 3*time.Minute) // a guard against hanging, which a busy machine does not meet
	}
	deadline := time.After(within)
	for pause := time.Millisecond; !ok(); pause = min(pause*2, 60*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-deadline:
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// Together runs tests at the same time, whatever -parallel says: they mostly wait. Tests that
// assert times run one after the other.
func Together(t *testing.T, tests map[string]func(*testing.T)) {
	var all sync.WaitGroup
	for name, test := range tests {
		if Timing {
			t.Run(name, test)
			continue
		}
		all.Go(func() { t.Run(name, test) })
	}
	all.Wait()
}

// labelled is the key of the label that tells the goroutines of one relay from those of others.
// Goroutines have the labels of those that started them, so those of the handlers and of the
// drivers under a relay's calls have it as well.
const labelled = "outbox_relay"

var runs atomic.Int64

// goroutines are those that one run of a relay started, whatever else runs in the process.
type goroutines struct {
	label string
	left  []string // functions of the goroutines that the test leaves behind
}

// in runs f as the first of them.
func (g *goroutines) in(ctx context.Context, f func(ctx context.Context)) {
	g.label = fmt.Sprint(runs.Add(1))
	pprof.Do(ctx, pprof.Labels(labelled, g.label), f)
}

// endWithin is how long after a run the drivers may take to end what they had begun: a context of
// theirs has ended, and a goroutine of database/sql or of a driver is about to notice.
const endWithin = 30 * time.Second

// ended checks I11: none is left. Goroutines that the test leaves behind do not count.
func (g *goroutines) ended(t testing.TB) {
	t.Helper()
	deadline := time.After(endWithin)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		stacks := g.stacks(t)
		if len(stacks) == 0 {
			return
		}
		select {
		case <-time.After(pause):
		case <-deadline:
			t.Errorf("I11: %v after the relay has returned it has goroutines:\n%s", endWithin, strings.Join(stacks, "\n\n"))
			return
		}
	}
}

// stacks are those of the goroutines that are there, one for several that are at the same place.
func (g *goroutines) stacks(t testing.TB) []string {
	t.Helper()
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		t.Fatal(err)
	}
	label := regexp.MustCompile(fmt.Sprintf(`(?m)^# labels: .*"%s":"%s"`, labelled, g.label))
	return slices.DeleteFunc(strings.Split(profile.String(), "\n\n"), func(stack string) bool {
		return !label.MatchString(stack) || slices.ContainsFunc(g.left, func(f string) bool {
			return strings.Contains(stack, f)
		})
	})
}

// Main is a TestMain: pgtest's, after which no goroutine may be left in the process (I11). It
// exits. Six parallel tests run at once, as they mostly wait. With the race detector it is five.
// -parallel chooses another number. It calls ends after the tests.
func Main(m *testing.M, ends ...func()) {
	flag.Parse()
	if flag.Lookup("test.parallel").Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		at := "6"
		if RaceDetector {
			at = "5"
		}
		_ = flag.Set("test.parallel", at)
	}
	code := pgtest.Main(m)
	for _, end := range ends {
		end()
	}
	err := goleak.Find()
	if code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
