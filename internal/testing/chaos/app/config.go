//go:build unix

// Package app is the app whose outbox is broken: its tables and tasks, and the processes that
// enqueue and run them.
package app

import "time"

// User is the role of the app.
const User = "app"

// The roles of a process.
const (
	RoleRelay    = "relay"
	RoleProducer = "producer"
)

// Config is what a process of the app does.
type Config struct {
	Role   string
	Name   string
	URL    string
	Driver string // pq or pgx
	Dir    string // of records
	Seed   uint64 // of a producer
	Tasks  int    // of a producer; 0 is no limit
	Group  int    // handlers.GroupCommit
	Dawdle int64  // one in so many leased tasks dawdles; 0 is none

	DawdleFor      time.Duration // of such a task
	Broker         string        // the URL of the NATS server
	BrokerPassword string        // the file that has the app's password
}
