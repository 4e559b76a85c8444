package handler

// What package handlers tells this module's other packages and hides from apps. It sets these
// functions as it is initialised.
var (
	// Registered returns the handlers of a *handlers.Registry as they are now, sorted by type.
	Registered func(registry any) []*Handler
	// IsBatchResult reports whether an error is a handlers.BatchResult, or a pointer to one.
	IsBatchResult = func(error) bool { return false }
	// Forwards is the handlers.Option that sets Handler.Forwards.
	Forwards any
)
