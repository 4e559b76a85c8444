package pgerr

import (
	"log/slog"
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
