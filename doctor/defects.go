package doctor

import (
	"context"
	"fmt"

	"github.com/txoutbox/outbox/admin"
)

// mostCounted is the most tasks and dead letters that are counted.
const mostCounted = 10_000

var sizeSQL = fmt.Sprintf(`/* outbox: whether there are few tasks */
SELECT (SELECT count(*) FROM (SELECT task_id FROM outbox.task ORDER BY task_id LIMIT %[1]d) AS t)
     + (SELECT count(*) FROM (SELECT task_id FROM outbox.dead_task ORDER BY task_id LIMIT %[1]d) AS d)`, mostCounted)

const repair = "outbox repair prints all such defects, and outbox repair -yes repairs them (admin.Client.Repair)"

// checkCounts counts only if there is little to count.
func checkCounts(ctx context.Context, v *visit) error {
	var n int64
	if err := v.row(ctx, sizeSQL, nil, &n); err != nil {
		return err
	}
	if n >= mostCounted {
		v.add("counts", SeverityOK, "", fmt.Sprintf("not checked, as there are %d tasks or more: outbox repair counts them",
			mostCounted), "")
		return nil
	}
	found, err := v.admin.Defects(ctx, admin.RepairOptions{Kinds: []admin.DefectKind{admin.DefectCounts}})
	for _, d := range found {
		v.add("counts", SeverityWarning, d.Subject, fmt.Sprintf("%d are counted, and there are %d", d.Is, d.ShouldBe), repair)
	}
	return err
}

func checkSequences(ctx context.Context, v *visit) error {
	found, err := v.admin.Defects(ctx, admin.RepairOptions{Kinds: []admin.DefectKind{admin.DefectSequences}})
	for _, d := range found {
		effect := "an INSERT fails with a duplicate key"
		if d.Subject == "task_task_id_seq" {
			effect = "new tasks have the ids of other tasks, or fail with a duplicate key"
		}
		v.add("sequences", SeverityCritical, d.Subject,
			fmt.Sprintf("the sequence %s is at %d, behind ids that were given: %s", d.Subject, d.Is, effect), repair)
	}
	return err
}
