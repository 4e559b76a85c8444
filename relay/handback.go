package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/internal/wake"
)

var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// HandBack makes all tasks that the relay of that id holds leases on ready at once, and returns how
// many: an operator's word that a node is dead, ahead of the 10 s after which other relays take its
// tasks over. relayID is as in the table of relays. The schema is "outbox" unless one is given.
//
// It is as a takeover: the runs stay counted as attempts, and each task runs solo the next time, as
// it may be what killed the node. A relay that lives after all loses these leases: it can neither
// complete nor fail those tasks, and within a heartbeat (3 s) their handlers' contexts end with the
// cause outbox.ErrLeaseLost. A task whose [outbox.Task.Complete] is under way is left to it. Tasks
// of Tx and Batch handlers need nothing of the kind: they are back when the server ends the dead
// node's connections.
//
// It works in transactions of 1,000 tasks each: after an error those before it are handed back, and
// the number says how many.
func HandBack(ctx context.Context, db *sql.DB, relayID string, schema ...string) (tasks int, err error) {
	name := outbox.DefaultSchema
	switch {
	case db == nil:
		return 0, errors.New("relay: HandBack needs a *sql.DB, not nil")
	case !uuid.MatchString(relayID):
		return 0, fmt.Errorf("relay: HandBack: %q is not the id of a relay, which is a UUID", relayID)
	case len(schema) > 1:
		return 0, fmt.Errorf("relay: HandBack: %d schemas, at most one", len(schema))
	case len(schema) == 1:
		name = schema[0]
	}
	if !outbox.ValidSchema(name) {
		return 0, fmt.Errorf("relay: HandBack: the schema %q: use a lower-case name like outbox: letters, digits and _ only, at most 63 bytes", name)
	}
	s := store.Store{Schema: pg.Schema(name), Conns: pg.NewPool(db)}
	defer s.Conns.Close()
	for more := true; more; {
		var n int64
		err := s.Conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
			result, err := tx.ExecContext(ctx, s.SQL(upkeep.TakeOverSQL), pq.Array([]string{strings.ToLower(relayID)}))
			if err == nil {
				n, err = result.RowsAffected()
			}
			return err
		})
		if err != nil {
			return tasks, fmt.Errorf("relay: hand back tasks of relay %s: %w", relayID, err)
		}
		tasks += int(n)
		more = n == 1000
	}
	if tasks > 0 {
		wake.All()
	}
	return tasks, nil
}
