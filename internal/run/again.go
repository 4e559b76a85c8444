package run

import (
	"github.com/txoutbox/outbox/handlers"
)

// resultAgain is what the result of Complete's function asks for: RunAgain, or nil to end the task; other results are errors.
func resultAgain(h *handlers.Handler, taskID int64, err error) (*handlers.Result, error) {
	if err = h.CheckAgain(taskID, err); !runsAgain(err) {
		return nil, err
	}
	return handlers.ResultOf(err), nil
}

func runsAgain(err error) bool {
	return err != nil && handlers.ResultOf(err).Action == handlers.ActionRunAgain
}
