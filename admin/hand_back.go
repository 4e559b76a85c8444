package admin

import (
	"context"
	"regexp"
	"strings"

	"github.com/lib/pq"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/internal/wake"
)

var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// HandBack makes all tasks that the relay of that id holds leases on ready at once, and returns how
// many: an operator's word that a node is dead, ahead of the 10 s after which other relays take its
// tasks over. relayID is as in [Relay].
//
// It is as a takeover: the runs stay counted as attempts, and a task that was lost before runs
// isolated, as it may be what killed the node. A relay that lives after all loses these leases: it
// can neither complete nor fail those tasks, and within a heartbeat (3 s) their handlers' contexts
// end with the cause outbox.ErrLeaseLost. A task whose [outbox.Task.Complete] is under way is left to it. Tasks
// of Tx and Batch handlers need nothing of the kind: they are back when the server ends the dead
// node's connections.
//
// It works in transactions of 1,000 tasks each: after an error those before it are handed back, and
// the number says how many. The audit log has an entry before them, and one after them: hand_back:
// done, or hand_back: failed.
func (c *Client) HandBack(ctx context.Context, relayID string) (tasks int64, err error) {
	if _, err := c.pool("HandBack"); err != nil {
		return 0, err
	}
	if !uuid.MatchString(relayID) {
		return 0, invalid("HandBack: %q is not the id of a relay, which is a UUID", relayID)
	}
	err = c.Noted(ctx, Entry{Action: "hand_back", Target: "relay " + relayID}, func() (int64, error) {
		for n := int64(maxRows); n == maxRows; {
			err := c.inTx(ctx, func(q outbox.Querier) error {
				result, err := q.ExecContext(ctx, c.schema.SQL(upkeep.TakeOverSQL), pq.Array([]string{strings.ToLower(relayID)}))
				if err == nil {
					n, err = result.RowsAffected()
				}
				return err
			})
			if err != nil {
				return tasks, failed("hand back tasks of relay "+relayID, err)
			}
			tasks += n
		}
		return tasks, nil
	})
	if tasks > 0 {
		wake.All()
	}
	return tasks, err
}
