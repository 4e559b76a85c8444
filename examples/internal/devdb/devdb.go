// Package devdb gives an example its database. An app has a connection string in its configuration instead.
package devdb

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/txoutbox/outbox/internal/devpg"
)

// With calls fn with the connection string in OUTBOX_DATABASE_URL; the example's tables stay in that database. Without it fn gets
// a PostgreSQL of the example's own, which is gone when With returns.
func With(ctx context.Context, fn func(url string) error) (err error) {
	if url := os.Getenv("OUTBOX_DATABASE_URL"); url != "" {
		return fn(url)
	}
	server, err := devpg.Open(ctx, func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	return fn(server.URL())
}
