package relaytest

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"go.uber.org/goleak"
)

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
