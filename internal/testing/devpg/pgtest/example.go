package pgtest

import (
	"context"
	"fmt"
	"testing"
)

// ExampleDatabase is [Database] for an example, which has no testing.TB: it panics where no
// PostgreSQL is to be had. The caller calls drop at its end.
func ExampleDatabase() (url string, drop func()) {
	url, drop, err := Server(example{}).NewDatabase(context.Background())
	if err != nil {
		panic(err)
	}
	return url, drop
}

// ExamplePrepared is [Kept] for an example.
func ExamplePrepared(prepare func(url string) error) (url string, drop func()) {
	return Kept(example{}, prepare)
}

// example is what this package uses of a testing.TB.
type example struct{ testing.TB }

func (example) Helper()           {}
func (example) Fatal(args ...any) { panic(fmt.Sprint(args...)) }
