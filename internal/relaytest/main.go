package relaytest

import (
	"flag"
	"runtime"
	"strconv"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"go.uber.org/goleak"
)

// Main is a TestMain: pgtest's, after which no goroutine may be left in the process (I11). Eight parallel tests run at once, five with
// the race detector, unless -parallel says otherwise, as they mostly wait. It exits.
func Main(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.parallel").Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) { // nobody has chosen another number
		at := "8"
		if RaceDetector {
			at = "5"
		}
		_ = flag.Set("test.parallel", at)
	}
	goleak.VerifyTestMain(pgtest.Tests{M: m},
		// The client of a Docker engine keeps its connections.
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}
