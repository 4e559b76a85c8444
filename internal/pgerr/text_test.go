package pgerr

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
)

func TestWhatADriverSaysOfAConnectionStringIsNotPassedOn(t *testing.T) {
	for _, driver := range []string{"postgres", "pgx"} {
		for _, dsn := range []string{
			"postgres://app:C4n4ry@%zz/x", "postgres://app:C4n4ry@127.0.0.1:bad/x", "postgres://app:a C4n4ry@127.0.0.1/x", "postgres://app:a/C4n4ry@127.0.0.1/x",
			"host=127.0.0.1 port=1 password=a C4n4ry", "host=127.0.0.1 password='C4n4ry", "host=127.0.0.1 port=C4n4ry", "host=127.0.0.1 sslmode=C4n4ry", "mysql://app:C4n4ry@h/x",
			"host=127.0.0.1 port=1 connect_timeout=C4n4ry",
		} {
			db, err := sql.Open(driver, dsn)
			if err == nil {
				err = db.PingContext(t.Context())
				db.Close()
			}
			if err == nil {
				t.Errorf("%s: %s: no error", driver, dsn)
			} else if got := fmt.Sprintf("%v %+v", WithoutDSN(err), WithoutDSN(err)); strings.Contains(got, "C4n4ry") {
				t.Errorf("%s: %s: got %s", driver, dsn, got)
			}
		}
	}
}

func TestOtherErrorsArePassedOn(t *testing.T) {
	server := &pq.Error{Code: "28P01", Message: `password = "x" of postgres://`}
	for _, err := range []error{nil, io.EOF, server, fmt.Errorf("with: %w", server), errors.New("dial tcp 127.0.0.1:1: connect: connection refused")} {
		if got := WithoutDSN(err); !errors.Is(got, err) {
			t.Errorf("got %v, want %v", got, err)
		}
	}
}
