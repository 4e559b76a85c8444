package outboxamqp_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"go.uber.org/goleak"
)

// No goroutine is left after the tests, so Close has waited for all.
func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.parallel").Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = flag.Set("test.parallel", "8") // they mostly wait
	}
	code := pgtest.Main(m)
	if b := started; b != nil {
		b.close()
	}
	// The client of a Docker engine, which may run PostgreSQL, keeps its connections.
	err := goleak.Find(goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
	if code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
