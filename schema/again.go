package schema

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
)

// sqlState is the SQLSTATE in err's chain, or "".
func sqlState(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	return ""
}

// needs adds to the server's permission error what the role needs; other errors stay as they are.
func needs(what string, err error) error {
	if sqlState(err) == "42501" { // insufficient_privilege
		return fmt.Errorf("%w (the role needs %s)", err, what)
	}
	return err
}

// again reports whether err may be gone at the next try.
func again(err error) bool {
	switch sqlState(err) {
	case "":
	case "55P03", "40P01", "40001": // lock not available, deadlock, serialization failure
		return true
	case "23505", "42P06", "42P07", "42710", "42723": // two create the same: unique key, schema, table, object, function
		return true
	case "XX000": // "tuple concurrently updated", in the server's language
		return true
	case "57P01", "57P02", "57P03", "53300", "08000", "08003", "08006": // stopping, crashed, starting, full, connection lost
		return true
	default:
		return false
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return false // more likely a wrong name than a name server's bad day
	}
	var network *net.OpError
	return errors.As(err, &network) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
