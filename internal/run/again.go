package run

import (
	"github.com/txoutbox/outbox/internal/handler"
)

// resultAgain is what the result of Complete's function asks for: RunAgain, or nil to end the task;
// other results are errors.
func resultAgain(h *handler.Handler, taskID int64, err error) (*handler.Result, error) {
	if err = h.CheckAgain(taskID, err); !runsAgain(err) {
		return nil, err
	}
	result := handler.ResultOf(err)
	return &result, nil
}

func runsAgain(err error) bool {
	return err != nil && handler.ResultOf(err).Action == handler.ActionRunAgain
}
