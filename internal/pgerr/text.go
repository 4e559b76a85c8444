package pgerr

import (
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/txoutbox/outbox/internal/guard"
)

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
