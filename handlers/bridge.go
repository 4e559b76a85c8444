package handlers

import "github.com/txoutbox/outbox/internal/handler"

func init() {
	handler.Registered = func(registry any) []*handler.Handler { return registry.(*Registry).registered() }
	handler.Forwards = Option(func(r *registration) { r.Forwards = true })
	handler.IsBatchResult = func(err error) bool {
		switch err.(type) {
		case BatchResult, *BatchResult: // whose members Unwrap would give
			return true
		}
		return false
	}
}
