package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lib/pq"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

// Triggers do the work of CHECKs, in one way for few rows and in another for many.
func TestTheTableRefusesRowsThatNoRelayCouldRun(t *testing.T) {
	db := open(t, pgtest.Database(t))
	migrate(t, db)
	run(t, db, "INSERT INTO outbox.task (task_type) VALUES ('here')")
	const token, relay = "'00000000-0000-0000-0000-000000000001'", "'00000000-0000-0000-0000-000000000002'"
	for _, c := range []struct{ columns, values, violates string }{
		{"task_type", "''", "task_type_check"},
		{"task_type", "repeat('x', 128)", ""},
		{"task_type", "repeat('x', 129)", "task_type_check"},
		{"task_type", "repeat('ä', 65)", "task_type_check"},
		{"task_type", `E'a\nb'`, "task_type_check"},
		{"task_type", `E'\u007f'`, "task_type_check"},
		{"task_type", `E'a\u0085'`, "task_type_check"},
		{"task_type", `E'ü \u00a0\u2028'`, ""},
		{"task_type", "NULL", "23502"},
		{"task_type, payload", "'T', NULL", "23502"},
		{"task_type, state", "'T', 'done'", "task_state_check"},
		{"task_type, state", "'T', 'waiting'", "task_state_check"},
		{"task_type, state, ordering_key", "'T', 'waiting', 'k'", ""},
		{"task_type, timeout_ms", "'T', 0", "task_timeout_check"},
		{"task_type, timeout_ms, run_at", "'T', 0, now() + interval '1 hour'", "task_timeout_check"},
		{"task_type, timeout_ms, ordering_key", "'T', 0, 'k'", "task_timeout_check"},
		{"task_type, ordering_key", "'T', ''", "task_ordering_check"},
		{"task_type, ordering_key", "'T', repeat('x', 257)", "task_ordering_check"},
		{"task_type, state", "'T', 'leased'", "task_lease_check"},
		{"task_type, lease_token", "'T', " + token, "task_lease_check"},
		{"task_type, leased_until", "'T', now()", "task_lease_check"},
		{"task_type, state, lease_token", "'T', 'leased', " + token, "task_lease_check"},
		{"task_type, state, lease_token, relay_id, leased_until", "'T', 'ready', " + token + ", " + relay + ", NULL", "task_lease_check"},
		{"task_type, state, lease_token, relay_id, leased_until", "'T', 'leased', " + token + ", " + relay + ", now()", ""},
		{"task_type, attempt", "'T', -1", "task_attempt_check"},
		{"task_type, max_attempts", "'T', 0", "task_max_attempts_check"},
		{"task_type, max_attempts", "'T', 1", ""},
		{"task_type, headers", "'T', '[]'", "task_headers_check"},
		{"task_type, headers", "'T', 'null'", "task_headers_check"},
		{"task_type, headers", "'T', '{}'", ""},
		{"task_type, run_at", "'T', 'infinity'", "task_time_check"},
		{"task_type, run_at", "'T', '-infinity'", "task_time_check"},
		{"task_type, run_at", "'T', '10000-01-01 00:00:00+00'", "task_time_check"},
		{"task_type, run_at", "'T', '9999-12-31 23:59:59.999999+00'", ""},
		{"task_type, run_at", "'T', '4713-01-01 00:00:00+00 BC'", ""},
		{"task_type, created_at", "'T', 'infinity'", "task_time_check"},
		{"task_type, created_at", "'T', '-infinity'", "task_time_check"},
		{"task_type, created_at", "'T', '10000-01-01 00:00:00+00'", "task_time_check"},
		{"task_type, attempted_at", "'T', 'infinity'", "task_time_check"},
		{"task_type, attempted_at", "'T', '10000-01-01 00:00:00+00'", "task_time_check"},
		{"task_type, task_id", "'T', 1", "428C9"}, // ids are the sequence's
	} {
		good := "('T'" + strings.Repeat(", DEFAULT", strings.Count(c.columns, ",")) + "), "
		insert := fmt.Sprintf("INSERT INTO outbox.task (%s) VALUES ", c.columns)
		for _, statement := range []string{
			insert + "(" + c.values + ")",
			insert + strings.Repeat(good, 4) + "(" + c.values + ")",
			fmt.Sprintf("UPDATE outbox.task SET (%s) = ROW(%s)", c.columns, c.values),
		} {
			if strings.HasPrefix(statement, "UPDATE") && slices.Contains([]string{"task_timeout_check", "task_ordering_check"}, c.violates) {
				continue // no relay changes these
			}
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = tx.Exec(statement)
			var e *pq.Error
			refused := errors.As(err, &e) && (e.Constraint == c.violates || string(e.Code) == c.violates)
			if c.violates == "" && err != nil || c.violates != "" && !refused {
				t.Errorf("%s: got %v, want a violation of %q", statement, err, c.violates)
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
