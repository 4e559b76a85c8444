package dashboard

import "time"

// SetSearchTime bounds a search.
func (h *Handler) SetSearchTime(d time.Duration) { h.site.searchTime = d }
