// Mutants changes the code in small ways and looks which tests notice.
//
//	go run ./internal/mutants -n 20 -seed 7          twenty mutants that the results do not have yet
//	go run ./internal/mutants -only "plan/" -n 10    mutants with this text in their line; -again: known ones, too
//	go run ./internal/mutants -survivors             those that survived, by all tests that reach them
//	go run ./internal/mutants -check                 entries of the results whose mutants are gone
//	go run ./internal/mutants -record relay          look again which code the tests of relay reach
//
// results.txt has two lines for each mutant: the file, the function and the change; then the tests
// that fail with the mutant, or that it survives. A mutant that changes no behaviour has the line
// "equivalent: " with a reason, which a reader of the code writes and the program keeps. Each result
// is written when it is known, so a run can be stopped and goes on later.
//
// The files:
//
//	source.go    loads the packages, and finds the mutants of Go code, statements and functions
//	gocode.go    mutants of Go: negated conditions, dropped statements and operands, other bounds, swaps
//	sqlcode.go   mutants of SQL: dropped clauses, other bounds and orders, dropped statements, swaps
//	overlay.go   compiles all mutants into the tests, by go build -overlay; the sources stay as they are
//	live/        switches one of them on, in the process of the tests; and records what tests reach
//	record.go    which tests reach which code: a run of each package, one test at a time, kept in the
//	             user's cache directory; functions of the schema say so in the server's log
//	testrun.go   runs tests of a package, with a mutant or while they are recorded
//	kill.go      runs the tests that reach a mutant until one fails: those first that kill others of its
//	             function, then those of its package, then the fastest ones
//	results.go   the file of results
//
// One binary of tests has all mutants, since linking takes longer than most tests. A mutant is
// known by its function and text, so its result stays when lines move. A new function is reached by
// nothing until -record has run its package's tests again.
//
// A slow failure counts only if the test fails again by itself, as a busy machine is no mutant.
// Mutants of constants, and of statements that are put together at run time, are not made.
package main
