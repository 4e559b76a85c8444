package pgerr

import (
	"errors"
	"regexp"
)

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
