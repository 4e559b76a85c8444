package pgerr

import "strings"

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
