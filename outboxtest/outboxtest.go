// Package outboxtest helps an app to test what it enqueues and what its handlers do, inside a
// transaction of the test's own that is rolled back at the end, or on a database of the test's own.
//
//	tx, err := db.BeginTx(t.Context(), nil)
//	defer tx.Rollback()
//
//	err = signUp(t.Context(), tx, "ada@example.com")            // what is tested
//	outboxtest.RequireEnqueued(t, tx, SendWelcome, nil)         // it enqueued a mail
//	got := outboxtest.Drain(t, tx, registry)                    // the app's handlers run, in tx
//	if err := got.Err(); err != nil { … }
//
// [RequireEnqueued], [RequireEnqueuedN], [RequireNotEnqueued] and [Enqueued] look at the tasks.
// [Drain] runs those that are due as a relay would, one after the other, with the same transitions.
// Nothing is waited for: no relay runs, and delays pass by [Advance] and [RetryNow].
//
// The functions fail the test by t.Fatalf, at the caller's line, so they are to be called in the
// test's own goroutine. They work with lib/pq and pgx, with database/sql and sqlx.
package outboxtest

import "reflect"

// isNil tells of nil pointers as well.
func isNil(q any) bool {
	v := reflect.ValueOf(q)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}
