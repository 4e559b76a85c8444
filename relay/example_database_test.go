package relay_test

import "github.com/txoutbox/outbox/internal/testing/relaytest"

// What the examples share.
var (
	exampleDatabase = relaytest.ExampleDatabase
	exampleServer   = relaytest.ExampleServer
	must            = relaytest.Must
	runDue          = relaytest.RunDue
)
