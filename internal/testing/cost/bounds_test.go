package cost_test

// bounds are of what one task costs. A line is a case of kinds_test.go, a column is a figure of
// figures_test.go. A bound is a little above what was measured:
//   - 5 % for calls, trips, statements and rows, so that one statement more for a task does not fit.
//     In the case leased these may double, as the machine decides how many tasks end together.
//   - 15 % for buffers, WAL and allocations, which differ between versions of PostgreSQL and Go.
//   - 20 times for polls, which come by the clock.
//
// Some figures have reasons that are not obvious. Six statements of a Tx task, a batch or a
// Complete reset its session, in a message that is sent anyway. One of a lease makes its commit
// asynchronous, in the same way. lib/pq takes two round trips for an Enqueue, as its values are
// arguments. Each row of a batch is an allocation of its own: a pool of rows saved 300 bytes a
// task, and had to know when nobody used a row any more.
//
// The index task_due costs an Enqueue 84 bytes of WAL and two buffers: without it no claim finds the
// task that has been due longest behind tasks that always come back. A claim has one argument more for
// it, and reads two pages to see whether its type is paused.
//
// A claim deletes by id, in one statement: half a buffer a task of a batch more than by ctid, and four
// statements a Tx task less.
//
// In the case batch-1000 the start of the relay is seen, of whose statements one asks whether the
// database is a copy, and one whether row level security hides rows: 2 of 50,000 tasks. Each of its
// connections asks for the settings that it needs, once.
//
// Buffers and WAL of complete-1 differ between machines and versions more than others do: the same code
// was within 28.5 and 928 where the first bound was set, and took 32 to 34 and 922 to 943 on a slower
// machine with 15.20, 37 and 1,012 with 14.23. The cause is not known.
//
// The journal of single tasks has one statement, whose result has four columns and mostly no row: 420
// bytes more than a statement of one column that leaves earlier runs to a second statement.
//
// A Tx task has a timer that says after 5 s what its transaction waits for: 180 bytes. A lease is
// noted from before its claim until its result is written, so that a lost result is found.
//
// OUTBOX_TEST_TIMING=1 go test ./internal/testing/cost -v -bounds prints the lines to put here.
var bounds = map[string]figures{
	// polls calls trips statements inner rows buffers wal allocs bytes
	"enqueue":      {0, 3.15, 4.2, 3.15, 2.1, 1.05, 11.6, 580, 70.6, 2850},
	"enqueue-1000": {0, 0.00315, 0.0042, 0.00315, 0.0021, 0.00105, 7.45, 432, 0.956, 167},
	"tx":           {1.14, 5.27, 5.27, 16.9, 6.85, 2.16, 26.5, 633, 225, 13400},
	"tx+insert":    {0.54, 6.32, 7.37, 17.9, 6.85, 3.16, 27.6, 716, 247, 14300},
	"batch-100":    {0.014, 0.0536, 0.054, 0.212, 0.108, 1.08, 7.45, 151, 7.17, 1070},
	"batch-1000":   {0.0064, 0.00595, 0.0062, 0.0216, 0.0113, 1.06, 7.5, 144, 4.92, 945},
	"leased-1":     {0.82, 3.16, 3.17, 8.41, 5.26, 1.06, 23.9, 920, 152, 11000},
	"leased":       {0.128, 0.146, 0.148, 0.283, 0.273, 0.05, 18.8, 621, 22, 2980},
	"complete-1":   {1.3, 6.32, 6.32, 21.1, 7.4, 3.16, 38.5, 1085, 207, 15300},
}
