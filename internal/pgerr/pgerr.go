// Package pgerr tells what an error of a PostgreSQL driver means for a transaction. It knows SQLSTATEs
// through a one-method interface, so it imports no driver.
package pgerr

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"
)

// Code is the SQLSTATE in err's chain, or "".
func Code(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	return ""
}

// Lost reports whether err means that the connection is gone, or the server is going or not taking
// work: nothing can be said about the statement, and the connection must be dropped.
func Lost(err error) bool {
	if err == nil {
		return false
	}
	if c := Code(err); c != "" {
		return strings.HasPrefix(c, "08") || strings.HasPrefix(c, "57P") || c == "25006" || c == "25P03" || c == "25P04" || c == "53300"
	}
	var n net.Error
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.As(err, &n) || errors.Is(err, sql.ErrConnDone) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// Conflict reports whether err says that a transaction gave way to another one and may be repeated.
func Conflict(err error) bool { c := Code(err); return c == "40001" || c == "40P01" }

// Passing reports whether err says nothing about the server: one connection was lost or one statement stopped, and the
// next may do.
func Passing(err error) bool {
	switch c := Code(err); c {
	case "":
		return Lost(err)
	// Terminated, idle for too long, in a transaction for too long, cancelled, waited too long for a lock.
	case "57P01", "57P05", "25P03", "25P04", "57014", "55P03":
		return true
	}
	return Conflict(err)
}

// CommitFailed reports whether err, returned by Commit, says that the transaction was surely not
// committed by it. Everything else is unknown: PostgreSQL may have committed before the reply was lost.
func CommitFailed(err error) bool {
	switch c := Code(err); {
	case c == "40003": // statement_completion_unknown
		return false
	case c != "":
		switch c[:2] { // connection, resources, operator, system, internal: perhaps after the commit record
		case "08", "53", "57", "58", "XX":
			return false
		}
		return true
	}
	if errors.Is(err, sql.ErrTxDone) {
		return true
	}
	// Both drivers answer a COMMIT in a failed transaction with a ROLLBACK and an error without a code.
	text := err.Error()
	return strings.Contains(text, "in a failed transaction") || strings.Contains(text, "commit unexpectedly resulted in rollback")
}

// Refusal reports whether a claim, or what is recorded of one, failed for a reason that may lie in
// the lane's rows, or in a trigger or right of the app's: other lanes go on.
func Refusal(err error) bool {
	code := Code(err)
	return code != "" && !Lost(err) && !Passing(err) && code[:2] != "53" && code[:2] != "58" && code[:2] != "XX"
}
