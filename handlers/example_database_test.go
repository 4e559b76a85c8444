package handlers_test

import "github.com/txoutbox/outbox/internal/relaytest"

// Helpers of the examples.
var (
	exampleDatabase = relaytest.ExampleDatabase
	enqueueAll      = relaytest.EnqueueAll
	must            = relaytest.Must
	runDue          = relaytest.RunDue
)
