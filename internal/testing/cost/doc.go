// Package cost holds the test of what a task costs: driver calls, round trips, statements, rows,
// buffers, WAL and allocations, which are the same on a slow machine and on a fast one. It has
// nothing but tests; cost_test.go has the bounds.
package cost
