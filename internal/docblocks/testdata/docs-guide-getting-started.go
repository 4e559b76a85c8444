package p

import (
	"context"

	"github.com/jmoiron/sqlx"
)

// sendWelcome takes no key before the outbox is there, and one from then on.
func sendWelcome(ctx context.Context, email string, key ...int64) error { return nil }

func serve(ctx context.Context, db *sqlx.DB) error { return nil }
