// Package cost holds the test of what a task costs: driver calls, round trips, statements, rows,
// buffers, WAL and allocations, which
// are the same on a slow machine and on a fast one. It has nothing but tests; the bounds are in bounds_test.go.
package cost
