package relay

import (
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/store"
)

// resultAgain is what the result of Complete's function asks for: RunAgain, or nil to end the task; other results are errors.
func resultAgain(h *handler.Handler, taskID int64, err error) (*handler.Result, error) {
	if err = h.CheckAgain(taskID, err); !runsAgain(err) {
		return nil, err
	}
	return handler.ResultOf(err), nil
}

func runsAgain(err error) bool {
	return err != nil && handler.ResultOf(err).Action == handler.ActionRunAgain
}

// allAgain is the result of each task after RunAgain for all.
func allAgain(rows []*store.Row, again *handler.Result) handlers.BatchError {
	all := make(handlers.BatchError, len(rows))
	for _, r := range rows {
		all[r.ID] = again
	}
	return all
}
