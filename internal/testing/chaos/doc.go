// Chaos breaks the outbox on purpose and counts lost tasks.
//
//	go run ./internal/testing/chaos                        a minute of everything
//	go run ./internal/testing/chaos -faults kill,crash -for 5m -seed 7
//	go run ./internal/testing/chaos -mutation all          are seeded bugs noticed, by runs and by tests?
//	go run ./internal/testing/chaos -mutation tests        those only that tests of the default suite notice
//	go run ./internal/testing/chaos -mutation cursor,blind-slot
//
// A run is, in this order:
//
//	setup.go      a PostgreSQL cluster (cluster.go), a NATS server (broker.go), and processes of the app
//	              (package app), each in a seat that starts it again, behind a TCP proxy (package
//	              internal/testing/proxy): together the arena
//	schedule.go   faults (faults*.go) are injected by a schedule that the seed gives
//	run.go        faults are healed, relays work off the backlog and end
//	check.go      what producers were told is compared with what happened, by queries (checks.go)
//	report.go     what was done and found (tally.go) is printed
//
// It exits with 1 if anything was lost, doubled or left behind; its files stay where it says then.
//
// A mutant (mutant.go, mutants*.go) is a bug that is compiled into the library by go build
// -overlay, and what must notice it: a run of this program, or named tests, which pass without the
// bug. Each edit of a mutant names a text that is once in the library, or once in a function of the
// schema; a change of the text fails TestEachMutantAppliesToTheSources. mutate.go prints for each
// mutant what was wrong in the run, or the first test that failed. It exits with 1 if one survives.
//
// It is a module of its own, as the library's go.mod requires no broker.
//
// docs/reliability.md has the promises that are checked, and the results of longer runs.
package main
