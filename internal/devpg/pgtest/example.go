package pgtest

import (
	"context"
	"fmt"
	"testing"
)

// ExampleDatabase is [Database] for an example, which has no testing.TB: it panics where no PostgreSQL is to be had. The caller
// calls drop at its end.
func ExampleDatabase() (url string, drop func()) {
	url, drop, err := Server(example{}).NewDatabase(context.Background())
	if err != nil {
		panic(err)
	}
	return url, drop
}

// ExamplePrepared is [Prepared] for an example, as ExampleDatabase is Database for one.
func ExamplePrepared(prepare func(url string) error) (url string, drop func()) {
	url, drop, err := copyOf(context.Background(), Server(example{}), prepare)
	if err != nil {
		panic(err)
	}
	return url, drop
}

// example is what Server uses of a testing.TB.
type example struct{ testing.TB }

func (example) Helper()           {}
func (example) Fatal(args ...any) { panic(fmt.Sprint(args...)) }
