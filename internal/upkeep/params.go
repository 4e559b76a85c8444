package upkeep

import (
	"context"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
)

// Params are what a Heartbeat needs of its relay.
type Params struct {
	RelayID, Host string
	PID           int
	Types         []string // that have a handler
	Workers       int
	Schedules     string // the definition of each by name, as JSON
	Environment   string // of the relay's Config
	Schema        pg.Schema
	Pool          *pg.Pool
	Pace          pg.Pace
	Log           *slog.Logger
	Now           func() time.Time        // time.Now
	Jobs          []Job                   // of the relay's other parts
	SharedJobs    []SharedJob             // of all relays
	Lost          func() (handlers int)   // ends the leased handlers, as the leases have run out
	Ready         func()                  // wakes the dispatcher after a takeover
	Identified    func(databaseID string) // by each beat
	Copied        func(err error)         // the database is a copy: the run is to end
	Refused       refusedFunc
	Last          func(context.Context, *pg.Dedicated) // after the sign-off, in what is left of its time
}
