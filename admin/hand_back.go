package admin

import (
	"context"
	"regexp"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/internal/wake"
)

var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// HandBack promises that the tasks are ready at once. Operators may write the columns that it sets,
// and no other. The relay's id stays on the row as a mark.
const handBackSQL = `/* outbox: hand back leased tasks of a relay */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE state = 'leased' AND relay_id = $1::uuid
   LIMIT 1000 FOR UPDATE SKIP LOCKED)
UPDATE outbox.task t SET state = 'ready', lease_token = NULL, leased_until = NULL,
       timeline = ` + upkeep.LostTimeline + `
 WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c))`

// HandBack makes all leased tasks of a relay ready at once, and returns their number. It is for a
// node that is surely dead: other relays take its tasks over after 10 s anyway. relayID is a
// [Relay]'s ID.
//
// The runs count as attempts. A task that was lost before runs isolated,
// as it may have killed the node. A relay that lives after all loses these leases: it can neither
// complete nor fail the tasks, and within a heartbeat (3 s) their handlers' contexts end with the
// cause outbox.ErrLeaseLost. Tasks in [outbox.Task.Complete] are left alone. Tasks of Tx and Batch
// handlers return when the server ends the dead node's connections.
//
// It works in transactions of 1,000 tasks each: after an error the number is that of the committed
// ones. The audit log has an entry before them, and an entry after them: hand_back: done, or
// hand_back: failed.
func (c *Client) HandBack(ctx context.Context, relayID string) (tasks int64, err error) {
	if _, err := c.pool("HandBack"); err != nil {
		return 0, err
	}
	if !uuid.MatchString(relayID) {
		return 0, invalid("HandBack: %q is not the id of a relay, which is a UUID", relayID)
	}
	err = c.audited(ctx, AuditEntry{Action: ActionHandBack, Target: "relay " + relayID}, func() (int64, error) {
		for n := int64(maxRows); n == maxRows; {
			err := c.inTx(ctx, func(q outbox.Querier) error {
				result, err := q.ExecContext(ctx, c.schema.SQL(handBackSQL), relayID)
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
