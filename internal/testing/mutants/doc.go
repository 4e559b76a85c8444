// Mutants changes the code in small ways and looks which tests notice.
//
//	go run ./internal/testing/mutants internal/plan                          all mutants of a package, by its own tests
//	go run ./internal/testing/mutants -tests internal/txrun,relay -n 50 -first internal/txrun
//	go run ./internal/testing/mutants -sql -n 20 schema                      mutants of the functions and views
//	go run ./internal/testing/mutants -list internal/plan                    the mutants, without running anything
//
// It prints a line for each mutant and one with the tests that fail, then the share that was killed and the
// tests that killed nothing. A survivor is a missing test, or a change that alters no behaviour.
//
// The mutants of Go are all compiled into one test binary, and an environment variable chooses one: a
// condition is negated, a bound or the order of operands is another one, an operand or a statement is
// dropped. Each test runs by itself first, which says which mutants it reaches; with a mutant only those
// tests run. Mutants of SQL, in schema/ and in constants, are built one at a time.
//
// The files:
//
//	source.go      loads a package
//	schemata.go    puts mutants of Go into the text
//	sqlcode.go     mutants of SQL: dropped clauses, other bounds and orders, dropped statements, swaps
//	sqltext.go     the tokens of SQL, and the functions and views of the schema
//	kill.go        runs tests with a mutant
//
// Statements that are put together at run time have no mutants.
package main
