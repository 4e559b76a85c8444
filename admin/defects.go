package admin

import (
	"context"
	"fmt"
	"slices"

	"github.com/txoutbox/outbox"
)

// DefectKind is the kind of a [Defect].
//
// Experimental: a minor version may change it.
type DefectKind string

// The kinds of defects, in the order in which Repair mends them.
//
// Experimental: a minor version may change them.
const (
	// DefectSequences: a sequence would give an id again, that of a row or of an earlier task.
	DefectSequences DefectKind = "sequence"
	// DefectCounts: the counts of a type differ from its rows.
	DefectCounts DefectKind = "count"
	// DefectUniqueKeys: a task does not hold its unique key, or a key is held by a task that has
	// another one.
	DefectUniqueKeys DefectKind = "unique_key"
	// DefectOrderingKeys: tasks wait, and no relay will look for the head of their key.
	DefectOrderingKeys DefectKind = "ordering_key"
	// DefectLeases: a task is leased to a relay that has no row.
	DefectLeases DefectKind = "lease"
	// DefectLeftovers: a lost run, or a request to cancel, belongs to an earlier task with the same id.
	DefectLeftovers DefectKind = "leftover"
	// DefectTaskIDs: a task has the id of a dead letter or of a finished task. Repair leaves it alone.
	DefectTaskIDs DefectKind = "task_id"
)

// Defect is a contradiction between an outbox's tables and its tasks, as after a partial restore or a
// switch-over by logical replication.
//
// Experimental: a minor version may change it.
type Defect struct {
	Kind     DefectKind
	Subject  string // a sequence; a task type, with a state for DefectCounts; a table for DefectTaskIDs
	Is       int64  // the last id of a sequence, the count; else the number of wrong rows
	ShouldBe int64  // as Is
	Conflict string // the decision that Repair leaves to a person; "" if Repair repairs the defect
}

// RepairOptions narrow [Client.Defects] and [Client.Repair]. The zero value means all defects.
//
// Experimental: a minor version may change it.
type RepairOptions struct {
	Kinds []DefectKind // none: all
	// Above is an id that new tasks must exceed, as the last_value of the old server's sequence
	// task_task_id_seq. 0: the rows tell.
	Above int64
}

func (o RepairOptions) check() error {
	if o.Above < 0 || o.Above > maxAbove {
		return invalid("RepairOptions.Above: %d: must be between 0 and %d", o.Above, int64(maxAbove))
	}
	for _, k := range o.Kinds {
		if !slices.ContainsFunc(repairs, func(r repair) bool { return r.kind == k }) {
			return invalid("RepairOptions.Kinds: there is no kind %q", k)
		}
	}
	return nil
}

const maxAbove = 1 << 62

func (o RepairOptions) has(k DefectKind) bool {
	return len(o.Kinds) == 0 || slices.Contains(o.Kinds, k)
}

// Defects returns the defects that [Client.Repair] repairs, and the conflicts that it leaves to a
// person. It only reads. It finds nothing in a sound outbox, also beside relays: each statement sees
// one snapshot.
//
// It reads all tasks, dead letters and unique keys once or twice, in seconds for millions. It needs
// the rights of a worker. For DefectSequences and DefectCounts those of a viewer suffice.
//
// Experimental: a minor version may change it.
func (c *Client) Defects(ctx context.Context, o RepairOptions) (found []Defect, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	err = c.read(func(q outbox.Querier) error {
		for _, r := range repairs {
			if !o.has(r.kind) {
				continue
			}
			some, err := r.find(ctx, c, q, o)
			if err != nil {
				return fmt.Errorf("%s: %w", r.kind, err)
			}
			found = append(found, some...)
		}
		return nil
	})
	return found, failed("look for defects", err)
}
