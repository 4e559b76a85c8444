package crashes_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/child"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// programs are what the relay processes of these tests run.
var programs = map[string]program{
	"effects":      {Registry: effects},
	"poison":       {Registry: poison},
	"slow poison":  {Registry: slowPoison},
	"gated":        {Registry: gated},
	"recurring":    {Registry: recurring},
	"ordered":      {Registry: func(*sql.DB) *handlers.Registry { return relaytest.Ordered(handlers.MaxAttempts(1000)) }},
	"every 200 ms": fires(200 * time.Millisecond),
	"every second": fires(time.Second),
	"limited":      {Registry: limited},
	"rated":        {Registry: rated},
}

func fires(period time.Duration) program {
	return program{
		Registry:  func(*sql.DB) *handlers.Registry { return relaytest.FiredAt() },
		Schedules: relay.Schedules{{Name: "tick", Timing: relay.Every(period), Task: relaytest.TypeFired.New(relaytest.Payload{}), CatchUp: relay.CatchUpAll}},
	}
}

func TestMain(m *testing.M) {
	child.Run(runRelay)
	relaytest.Main(m)
}
