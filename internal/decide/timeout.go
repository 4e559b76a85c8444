package decide

import (
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/store"
)

// Timeout is how long a call for these tasks may take, 0 for any time: the longest timeout of one
// of them.
func Timeout(h *handler.Handler, rows ...*store.Row) (longest time.Duration) {
	for _, r := range rows {
		d := h.Timeout + h.Lease // one of them
		if own, set := r.Timeout(); set {
			d = own
		}
		if h.Kind != outbox.KindLeased {
			d = min(d, handlers.MaxTxTimeout)
		}
		longest = max(longest, d)
	}
	return longest
}
