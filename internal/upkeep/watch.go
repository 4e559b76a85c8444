package upkeep

import (
	"context"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
)

// watch ends the leased handlers when the heartbeat has been away for as long as leases last. It is
// apart from the beats, as those may hang.
func (h *Heartbeat) watch(stop <-chan struct{}) {
	select {
	case <-h.First:
	case <-stop:
		return
	}
	for {
		left := h.LeaseEnd().Sub(h.Now())
		if left <= 0 {
			if n := h.Lost(); n > 0 {
				h.Log.Warn("outbox: no heartbeat for as long as leases last; leased handlers are stopped", "handlers", n)
			}
			left = time.Second
		}
		select {
		case <-time.After(left):
		case <-stop:
			return
		}
	}
}

// signOffSQL: a relay that leaves nothing behind leaves no row; else its row says when others may
// take over.
const signOffSQL = `/* outbox: sign off */
DELETE FROM outbox.relay l WHERE relay_id = $1::uuid
   AND NOT EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased' AND t.relay_id = l.relay_id)
   AND NOT EXISTS (SELECT 1 FROM outbox.running r WHERE r.relay_id = l.relay_id)
RETURNING ` + pg.CommitAsync

// SignOff deletes the row of a relay that has beaten.
func (h *Heartbeat) SignOff() {
	if h.streak.last.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for range 2 { // the end of the loop may have broken the connection behind a statement that succeeded
		err := h.on.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
			_, err := conn.ExecContext(ctx, h.Schema.SQL(signOffSQL), h.RelayID)
			return err
		})
		if err == nil {
			break
		}
	}
	h.Last(ctx, &h.on)
}
