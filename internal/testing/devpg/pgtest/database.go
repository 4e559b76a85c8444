package pgtest

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg"
)

// Database returns the URL of an empty database of the test's own. It is dropped after the test,
// with the connections that are still open to it.
func Database(t testing.TB) string {
	t.Helper()
	return Encoded(t, "UTF8")
}

// Encoded is Database in another encoding.
func Encoded(t testing.TB, encoding string) string {
	t.Helper()
	url, drop, err := Server(t).EncodedDatabase(t.Context(), encoding)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(drop)
	return url
}

// ICU is Database with text in the order of an ICU locale. It skips the test where the server has no
// such databases.
func ICU(t testing.TB, locale string) string {
	t.Helper()
	url, drop, err := Server(t).ICUDatabase(t.Context(), locale)
	if errors.Is(err, devpg.ErrNoICU) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(drop)
	return url
}

// Copied is Database with what is in the database of the URL, as CREATE DATABASE … TEMPLATE makes
// it. Nobody may be connected to that.
func Copied(t testing.TB, of string) string {
	t.Helper()
	url, drop, err := Server(t).CopiedDatabase(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(drop)
	return url
}

// Prepared is Database with what prepare made of an empty one. That happens once for each function;
// the others are copies, which are had sooner. prepare is no closure, and leaves no connection
// open.
func Prepared(t testing.TB, prepare func(url string) error) string {
	t.Helper()
	url, drop := Kept(t, prepare)
	t.Cleanup(drop)
	return url
}

// Kept is Prepared with a database that the caller drops.
func Kept(t testing.TB, prepare func(url string) error) (url string, drop func()) {
	t.Helper()
	function := reflect.ValueOf(prepare).Pointer()
	url, drop, err := Server(t).PreparedDatabase(context.Background(), function, prepare)
	if err != nil {
		t.Fatal(err)
	}
	return url, drop
}
