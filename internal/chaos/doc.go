// Chaos breaks the outbox on purpose and counts what was lost.
//
//	go run ./internal/chaos                        a minute of everything
//	go run ./internal/chaos -faults kill,crash -for 5m -seed 7
//	go run ./internal/chaos -mutation all          does it find seeded bugs?
//
// It starts a PostgreSQL cluster of its own with fsync on (two, where there are failovers), producers and relays in processes of their own, a TCP
// proxy before each of them, an HTTP server that remembers idempotency keys, and a monkey that breaks things by a schedule that the seed gives. When
// the time is over it heals everything, waits until the backlog is worked off, stops the relays, and compares what producers were told with what
// happened. It exits with 1 if anything was lost, doubled or left behind, and prints what it did and found; the files stay where it says then.
//
// The promises that it checks, and what longer runs gave, are in docs/reliability.md.
package main
