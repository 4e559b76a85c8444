package pgerr

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/testing/faultmap"
)

// state is an error of PostgreSQL's.
type state string

func (s state) Error() string    { return "ERROR: " + string(s) }
func (s state) SQLState() string { return string(s) }

var aCode = regexp.MustCompile(`^[0-9A-Z]{2}([0-9A-Z]{3})?$`)

// codesOf are the SQLSTATEs of a row, and one of each of its classes.
func codesOf(cell string) (named, codes []string) {
	for word := range strings.FieldsFuncSeq(cell, func(r rune) bool { return r == ',' || r == ' ' }) {
		if !aCode.MatchString(word) {
			continue
		}
		named = append(named, word)
		if len(word) == 2 {
			word += "ZZZ" // none has a meaning of its own
		}
		codes = append(codes, word)
	}
	return named, codes
}

func TestTheTableOfSQLSTATEsIsWhatTheCodeSays(t *testing.T) {
	var named []string
	for _, row := range faultmap.Table(t, "PostgreSQL") {
		states, codes := codesOf(row["SQLSTATE"])
		named = append(named, states...)
		var errs []error
		for _, code := range codes {
			errs = append(errs, state(code), fmt.Errorf("with: %w", state(code)))
		}
		switch {
		case strings.Contains(row["SQLSTATE"], "all others"):
			errs = append(errs, state("4711X"), state("S"))
		case strings.Contains(row["SQLSTATE"], "EOF"):
			errs = append(errs, driver.ErrBadConn, io.EOF, io.ErrUnexpectedEOF, &net.OpError{Err: errors.New("refused")}, net.ErrClosed, context.DeadlineExceeded, context.Canceled)
		case strings.Contains(row["SQLSTATE"], "anything else"):
			errs = append(errs, errors.New("no"))
		}
		if len(errs) == 0 {
			t.Errorf("the row %q has no SQLSTATE", row["SQLSTATE"])
		}
		if strings.Contains(row["SQLSTATE"], "any code that prevents") {
			errs = append(errs, NoConnection(state("42501")), fmt.Errorf("with: %w", NoConnection(state("55000"))))
		}
		for _, err := range errs {
			if got, want := Of(err), Fault(row["whose fault"]); got != want {
				t.Errorf("%v is %q, and %q in the table", err, got, want)
			}
			if got, want := Lasting(err), row["waiting mends it"] == "no"; got != want {
				t.Errorf("%v lasts: %v, and %v in the table", err, got, want)
			}
			if got, want := CommitFailed(err) && !Blameless(err), row["counts, from COMMIT"] == "yes"; got != want {
				t.Errorf("%v from COMMIT counts: %v, and %v in the table", err, got, want)
			}
		}
	}
	for code := range mends {
		if !slices.Contains(named, code) {
			t.Errorf("the table has no row of %s, which waiting mends or not", code)
		}
	}
	for code := range faults {
		if !slices.Contains(named, code) {
			t.Errorf("the table has no row of %s", code)
		}
	}
	for _, class := range strings.Fields("00 01 02 03 08 09 0A 0B 0F 0L 0P 0Z 10 20 21 22 23 24 25 26 27 28 2B 2D 2F 34 38 39 3B 3D 3F 40 42 44 53 54 55 57 58 72 F0 HV P0 XX") {
		if !slices.Contains(named, class) {
			t.Errorf("the table has no row of class %s", class)
		}
	}
	if f := Of(nil); f != Foreign {
		t.Errorf("no error is %q", f)
	}
}

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

func TestAPackageIsNamedOnce(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"schema: newer": "schema: migrate outbox: newer",
		"gave up: schema: newer; the latest: schema: old": "schema: migrate outbox: gave up: newer; the latest: old",
		"outbox: newer": "schema: migrate outbox: outbox: newer",
		"schema":        "schema: migrate outbox: schema",
	} {
		err := errors.New(text)
		if got := Within("schema: migrate outbox", err); got.Error() != want || !errors.Is(got, err) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
