package p

import (
	"context"
	"database/sql"
	"testing"

	"github.com/txoutbox/outbox/handlers"
)

var server *sql.DB

func testDB(t *testing.T) *sql.DB { return nil }

func signUp(ctx context.Context, tx *sql.Tx, email string) error { return nil }

func registry(send func(userID int64) error) *handlers.Registry { return nil }
