package relaytest

import (
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"go.uber.org/goleak"
)

// Main is a TestMain: pgtest's, after which no goroutine may be left in the process (I11). It exits.
func Main(m *testing.M) {
	goleak.VerifyTestMain(pgtest.Tests{M: m},
		// The client of a Docker engine keeps its connections.
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}
