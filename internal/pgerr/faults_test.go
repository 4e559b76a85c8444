package pgerr

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"

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
