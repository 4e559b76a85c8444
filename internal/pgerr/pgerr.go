// Package pgerr tells what an error of a PostgreSQL driver means for a transaction. It knows
// SQLSTATEs through a one-method interface, so it imports no driver.
package pgerr

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/txoutbox/outbox/internal/guard"
)

// Code is the SQLSTATE in err's chain, or "".
func Code(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	return ""
}

// Fault is whose fault an error is. The table in docs/faults.md says what follows.
type Fault string

const (
	// Foreign is neither PostgreSQL's nor the connection's.
	Foreign Fault = ""
	// Connection: it has ended. Another one may work.
	Connection Fault = "the connection's"
	// Server: it is going, is full, takes no writes or refuses the login. The connection is of no
	// use.
	Server Fault = "the server's"
	// Resources: memory, disk or connections of the server did not suffice for one statement.
	Resources Fault = "the server's resources"
	// Others: the statement gave way to another transaction, waited too long for it, or was
	// canceled.
	Others Fault = "other transactions'"
	// Refused: a row, also a damaged one, a trigger, a right or a definition is to blame. It is all
	// that faults does not name.
	Refused Fault = "the statement's"
)

// faults are those of SQLSTATEs and of their classes, which are their first two characters.
var faults = map[string]Fault{
	"08":    Server,     // connection exceptions, also of a pooler
	"25006": Server,     // read_only_sql_transaction: a standby, since a failover
	"28":    Server,     // invalid_password and its like: of a new connection only
	"25P03": Connection, // idle_in_transaction_session_timeout
	"25P04": Connection, // transaction_timeout
	"40001": Others,     // serialization_failure
	"40003": Connection, // statement_completion_unknown
	"40P01": Others,     // deadlock_detected
	"53":    Resources,  // insufficient resources
	"53300": Server,     // too_many_connections
	"55P03": Others,     // lock_not_available
	"57":    Others,     // operator intervention, such as query_canceled
	"57P01": Connection, // admin_shutdown: one backend was terminated, or all
	"57P02": Server,     // crash_shutdown
	"57P03": Server,     // cannot_connect_now
	"57P04": Server,     // database_dropped
	"57P05": Connection, // idle_session_timeout
}

// mends says of SQLSTATEs and of their classes whether waiting may mend them. It cannot mend all
// others: a right, an object, a login or a database is missing, or PostgreSQL refuses the
// statement.
var mends = map[string]bool{
	"08": true, "25006": true, "25P03": true, "25P04": true, "40001": true,
	"40003": true, "40P01": true, "53": true, "55P03": true,
	"57": true, "57P04": false, // database_dropped
	"58": true, "XX000": true, // PostgreSQL, its storage or a pooler failed internally
}

// Lasting reports whether PostgreSQL has answered with an error that no waiting mends, to a
// statement or to a login.
func Lasting(err error) bool {
	code := Code(err)
	if code == "" {
		return false
	}
	if passes, known := mends[code]; known {
		return !passes
	}
	return !mends[code[:min(2, len(code))]]
}

// Dial reports whether err is that of a connection that could not be made, see [NoConnection].
func Dial(err error) bool {
	var dial noConnection
	return errors.As(err, &dial)
}

// noConnection is an error of a connection that could not be made.
type noConnection struct{ error }

func (n noConnection) Unwrap() error { return n.error }

// NoConnection marks an error as that of a connection that could not be made. It is the server's
// fault with any SQLSTATE, such as 42501 where the right to connect was revoked.
func NoConnection(err error) error { return noConnection{err} }

// Of is whose fault err is.
func Of(err error) Fault {
	if err == nil {
		return Foreign
	}
	if Dial(err) {
		return Server
	}
	if code := Code(err); code != "" {
		for _, key := range []string{code, code[:min(2, len(code))]} {
			if f, known := faults[key]; known {
				return f
			}
		}
		return Refused
	}
	var n net.Error
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.As(err, &n) || errors.Is(err, sql.ErrConnDone) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return Connection
	}
	return Foreign
}

// Lost reports whether nothing can be said about the statement, and the connection must be dropped.
func Lost(err error) bool { f := Of(err); return f == Connection || f == Server }

// Passing reports whether err says nothing about the server: one connection was lost or one
// statement stopped, and the next may do.
func Passing(err error) bool { f := Of(err); return f == Connection || f == Others }

// Refusal reports whether a claim, or what is recorded of one, failed for a reason that may lie in
// the lane's rows, or in a trigger or right of the app's: other lanes go on.
func Refusal(err error) bool { return Of(err) == Refused }

// Blameless reports whether err says nothing about what a statement was to do: of the relay's own
// it is no attempt of a task.
func Blameless(err error) bool { f := Of(err); return f != Foreign && f != Refused }

// Conflict reports whether err says that a transaction gave way to another one and may be repeated.
func Conflict(err error) bool { c := Code(err); return c == "40001" || c == "40P01" }

// CommitFailed reports whether err, returned by Commit, says that the transaction was surely not
// committed by it. Everything else is unknown: PostgreSQL may have committed before the reply was
// lost.
func CommitFailed(err error) bool {
	switch c := Code(err); {
	case c == "40003": // statement_completion_unknown
		return false
	case c != "":
		switch c[:min(2, len(c))] { // connection, resources, operator, system, internal: perhaps after the commit record
		case "08", "53", "57", "58", "XX":
			return false
		}
		return true
	}
	if errors.Is(err, sql.ErrTxDone) {
		return true
	}
	// Both drivers answer a COMMIT in a failed transaction with a ROLLBACK and an error without a
	// code. The third text is of a pgx.Tx that has ended before.
	text := err.Error()
	return strings.Contains(text, "in a failed transaction") ||
		strings.Contains(text, "commit unexpectedly resulted in rollback") || text == "tx is closed"
}

const maxTextBytes = 4 << 10

// Text is err's text as PostgreSQL can store it: see [Storable]. A panic of the method Error is
// recovered.
func Text(err error) string { return Storable(guard.Text(err)) }

// LogAttr is an error in a log record: the attribute error, and stack if it is a panic.
func LogAttr(err error) slog.Attr {
	text := slog.String("error", Text(err))
	if stack := guard.Stack(err); stack != nil {
		return slog.Group("", text, slog.String("stack", string(stack)))
	}
	return text
}

// Storable makes a text valid UTF-8 without NUL, of at most 4 kB.
func Storable(s string) string {
	if len(s) > maxTextBytes+utf8.UTFMax {
		s = s[:maxTextBytes+utf8.UTFMax] // the rest is never looked at
	}
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= maxTextBytes {
		return s
	}
	cut := maxTextBytes
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}

// LogText is err's text for the log. Drivers put the connection string, or parts of it, into the
// error of one that does not parse; such a text is not shown.
func LogText(err error) string {
	text := Text(err)
	if Code(err) == "" && RepeatsDSN(text) {
		return hidden{}.Error()
	}
	return text
}

// repeatsDSN finds texts that may have parts of a connection string in them, such as its password.
// Drivers repeat a connection string that they cannot parse, which they do when they first connect.
var repeatsDSN = regexp.MustCompile(`(?i)://|password\s*=|connection (info )?string|wrong value for|cannot parse|` +
	`don't know how to set|invalid connection protocol|unknown port`)

// hidden is an error whose text is not shown. errors.Is and errors.As see through it, as a retry
// depends on them.
type hidden struct{ err error }

func (hidden) Error() string {
	return "the connection failed; the error is not shown, as it repeats the connection string"
}
func (h hidden) Is(target error) bool { return errors.Is(h.err, target) }
func (h hidden) As(target any) bool   { return errors.As(h.err, target) }

// RepeatsDSN reports whether a text may have parts of a connection string in it.
func RepeatsDSN(text string) bool { return repeatsDSN.MatchString(text) }

// WithoutDSN hides the text of an error that may repeat the connection string, and returns other
// errors as they are. It is for errors of the driver, not of handlers.
func WithoutDSN(err error) error {
	if err == nil || Code(err) != "" || !RepeatsDSN(err.Error()) {
		return err
	}
	return hidden{err}
}

// Within wraps an error by where it happened. where begins with the name of a package and ": ". The
// text names the package once, as err, or what err wraps, may be of the same one.
func Within(where string, err error) error { return within{where, err} }

type within struct {
	where string
	err   error
}

func (w within) Error() string {
	name, _, _ := strings.Cut(w.where, ": ")
	return w.where + strings.ReplaceAll(": "+w.err.Error(), ": "+name+": ", ": ")
}

func (w within) Unwrap() error { return w.err }
