package main

import "testing"

func TestRepairPrintsWhatIsWrongAndMendsItWhenTold(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, state, unique_key) VALUES ('REPORT', 'scheduled', 'may');
		DELETE FROM outbox.counter_log;
		SELECT setval('outbox.task_task_id_seq', 1, false)`)
	db.steps(t,
		step{"repair", exitOK, "count       REPORT scheduled                  0          1  -\n"},
		step{"repair", exitOK, "nothing was changed: outbox repair -yes repairs these\n"},
		step{"repair -yes", exitOK, "sequence    task_task_id_seq                  0    1000001  -\n"},
		step{"repair", exitOK, "nothing to repair\n"},
		step{"repair -above -1", exitUsage, "RepairOptions.Above: -1"},
	)
	db.wantAudit(t, "repair sequence 1, count 1, unique_key 1 0", "repair: done sequence 1, count 1, unique_key 1 3")
	db.bury(t, "REPORT", "no", 1, 1)
	db.steps(t,
		step{"repair", exitFailed, "the tasks 1 have the ids of dead letters"},
		step{"repair -yes", exitFailed, "1 conflict to be decided by a person"},
	)
}
