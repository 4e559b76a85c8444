package p

import (
	"database/sql"
	"testing"

	"github.com/txoutbox/outbox/handlers"
)

func openTestDatabase(t *testing.T) *sql.DB { return nil }

func registry(send func(userID int64) error) *handlers.Registry { return nil }
