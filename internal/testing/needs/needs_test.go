package needs_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/needs"
)

// recorder is a testing.TB that remembers how the test ended.
type recorder struct {
	testing.TB
	ended, said string
}

func (r *recorder) end(how, format string, args ...any) {
	r.ended, r.said = how, fmt.Sprintf(format, args...)
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.end("failed", format, args...)
	runtime.Goexit()
}
func (r *recorder) Skipf(format string, args ...any) {
	r.end("skipped", format, args...)
	runtime.Goexit()
}
func (r *recorder) Errorf(format string, args ...any) { r.end("failed, went on", format, args...) }
func (r *recorder) Logf(format string, args ...any)   { r.end("went on", format, args...) }

func TestAMissingProgramSkipsAndFailsWhereAllAreRequired(t *testing.T) {
	for _, c := range []struct{ require, ended, goesOn, says string }{
		{"", "skipped", "went on", "no-such-program: apt-get install a-package"},
		{"all", "failed", "failed, went on", "OUTBOX_TEST_REQUIRE=all: needs no-such-program: apt-get install a-package"},
	} {
		t.Setenv("OUTBOX_TEST_REQUIRE", c.require)
		for want, call := range map[string]func(testing.TB, string, ...string) string{c.ended: needs.Program,
			c.goesOn: needs.Optional} {
			r := &recorder{TB: t}
			var running sync.WaitGroup
			running.Go(func() { call(r, "a-package", "no-such-program") })
			running.Wait()
			if r.ended != want || !strings.HasSuffix(r.said, c.says) {
				t.Errorf("OUTBOX_TEST_REQUIRE=%s: %s, saying %q; want %s with %q", c.require, r.ended, r.said, want, c.says)
			}
		}
	}
	if path := needs.Program(t, "golang-go", "no-such-program", "go"); !strings.HasSuffix(path, "/go") {
		t.Errorf("go is %q", path)
	}
}
