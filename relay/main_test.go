package relay_test

import (
	"flag"
	"runtime"
	"strconv"
	"testing"

	_ "github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/relaytest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.parallel").Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) { // nobody has chosen another number
		_ = flag.Set("test.parallel", "5") // they mostly wait
	}
	relaytest.Main(m)
}
