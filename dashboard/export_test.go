package dashboard

import "time"

// SetPatience is for how long a search looks.
func (h *Handler) SetPatience(d time.Duration) { h.patience = d }
