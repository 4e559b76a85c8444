// Chaos breaks the outbox on purpose and counts what was lost.
//
//	go run ./internal/chaos                        a minute of everything
//	go run ./internal/chaos -faults kill,crash -for 5m -seed 7
//	go run ./internal/chaos -mutation all          are seeded bugs noticed, by runs and by tests?
//	go run ./internal/chaos -mutation tests        those only that tests of the default suite notice
//	go run ./internal/chaos -mutation cursor,blind-slot
//
// It starts a PostgreSQL cluster of its own with fsync on (two, where there are failovers), producers and relays in processes of their own, a TCP
// proxy before each of them, an HTTP server that remembers idempotency keys, and a monkey that breaks things by a schedule that the seed gives. When
// the time is over it heals everything, waits until the backlog is worked off, stops the relays, and compares what producers were told with what
// happened. It exits with 1 if anything was lost, doubled or left behind, and prints what it did and found; the files stay where it says then.
//
// A mutant is a bug that is compiled into the library by go build -overlay, and what must notice it: a
// run of this program, or named tests of a package, which pass without the bug. Each edit of a mutant
// names a file, or a function of the schema, and a text that is there once; a refactoring that moves
// the text fails TestEachMutantAppliesToTheSources. It prints for each mutant what was wrong in the
// run, or the first test that failed. It exits with 1 if a mutant survives.
//
// The promises that it checks, and what longer runs gave, are in docs/reliability.md.
package main
