package handlers_test

import "github.com/txoutbox/outbox/internal/relaytest"

// What the examples share.
var (
	exampleDatabase = relaytest.ExampleDatabase
	enqueueAll      = relaytest.EnqueueAll
	must            = relaytest.Must
	runDue          = relaytest.RunDue
)
