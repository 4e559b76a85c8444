// Mutants changes the code in small ways and looks which tests notice.
//
//	go run ./internal/mutants -n 20 -seed 7     twenty mutants that the results do not have yet
//	go run ./internal/mutants -only "plan/"     mutants with this text in their line; -again: known ones, too
//	go run ./internal/mutants -list             all mutants, without running anything
//	go run ./internal/mutants -check            entries of the results whose mutants or tests are gone
//
// results.txt has two lines for each mutant: the file, the function and the change; then the tests
// that fail with the mutant, or that it survives. A mutant that changes no behaviour has the line
// "equivalent: " with a reason, which a reader of the code writes and the program keeps. Each result
// is written when it is known, so a run can be stopped and goes on later.
//
// Each mutant is one changed text of one file, for go test -overlay; the sources stay as they are.
// The tests of the packages that killed other mutants of the function run first, then those of the
// mutant's package, then those of the packages that use it, until a test fails. A mutant is known
// by its function and text, so its result stays when lines move.
//
// The files:
//
//	source.go      loads the packages, and finds the mutants of statements
//	gocode.go      mutants of Go: negated conditions, dropped statements and operands, other bounds, swaps
//	sqlcode.go     mutants of SQL: dropped clauses, other bounds and orders, dropped statements, swaps
//	sqltext.go     the tokens of SQL, and the functions and views of the schema
//	kill.go        runs tests with a mutant
//	results.go     the file of results
//
// Mutants of statements that are put together at run time are not made.
package main
