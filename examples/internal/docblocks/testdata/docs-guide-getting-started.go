package p

import (
	"context"
	"net/http"

	"github.com/jmoiron/sqlx"
)

func sendWelcome(ctx context.Context, email string) error { return nil }

func sendWelcomeWithKey(ctx context.Context, email, key string) error { return nil }

func routes(db *sqlx.DB) http.Handler { return nil }
