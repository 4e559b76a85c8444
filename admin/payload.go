package admin

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"

	"github.com/txoutbox/outbox"
)

// Payload is the payload of a task and the other texts that need the right to see payloads.
type Payload struct {
	Payload     json.RawMessage
	Headers     json.RawMessage // nil: none
	UniqueKey   string          // "": none, or finished
	OrderingKey string          // "": none, or finished
}

// Rights are by table, and an operator may read the payloads of dead letters only. So a statement
// first finds the table of the task.
const placeSQL = `/* outbox: where a task is */
SELECT place FROM (
  SELECT 1 AS place FROM outbox.task t WHERE t.task_id = $1
   UNION ALL SELECT 2 FROM outbox.dead_task t WHERE t.task_id = $1
   UNION ALL SELECT 3 FROM outbox.done_task t WHERE t.task_id = $1) p
 ORDER BY place LIMIT 1`

var payloadSQL = map[int]string{
	1: `/* outbox: inspect a payload */
SELECT payload::text, headers::text, COALESCE(unique_key, ''), COALESCE(ordering_key, '')
  FROM outbox.task WHERE task_id = $1`,
	2: `/* outbox: inspect a payload */
SELECT payload::text, headers::text, COALESCE(unique_key, ''), COALESCE(ordering_key, '')
  FROM outbox.dead_task WHERE task_id = $1`,
	3: `/* outbox: inspect a payload */
SELECT payload::text, headers::text, '', '' FROM outbox.done_task WHERE task_id = $1`,
}

// Payload returns a task's payload, headers and keys, wherever it is. The error is ErrNotFound if
// it is nowhere.
//
// It needs SELECT on the payload, headers and keys of the table where the task is. Of the roles of
// docs/security.md the worker and the owner have it, and the operator for dead letters. Others get
// PostgreSQL's error with SQLSTATE 42501 (insufficient_privilege), after which a transaction is to
// be rolled back.
func (c *Client) Payload(ctx context.Context, taskID int64) (Payload, error) {
	var out Payload
	err := c.read(func(q outbox.Querier) (err error) {
		for range 5 { // it may have gone elsewhere between the two statements
			var place int
			if err := q.QueryRowContext(ctx, c.schema.SQL(placeSQL), taskID).Scan(&place); err != nil {
				return err
			}
			err = q.QueryRowContext(ctx, c.schema.SQL(payloadSQL[place]), taskID).
				Scan((*[]byte)(&out.Payload), (*[]byte)(&out.Headers), &out.UniqueKey, &out.OrderingKey)
			if !errors.Is(err, sql.ErrNoRows) {
				return err
			}
		}
		return err
	})
	if err != nil {
		return Payload{}, failedTask("get the payload of", taskID, err)
	}
	return out, nil
}
