package dashboard

import "errors"

// Errors of requests.
var (
	errNotFound   = errors.New("not found")
	errMethod     = errors.New("method not allowed")
	errForbidden  = errors.New("forbidden")
	errAlive      = errors.New("the relay is alive")
	errNoSchedule = errors.New("no such schedule")
)

// badRequest is what is wrong with a query or a form, in words for the page.
type badRequest string

func (b badRequest) Error() string { return string(b) }
