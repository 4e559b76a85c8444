// Package raw is the limit that a library can come close to: the SQL statements of the same work,
// prepared, driven by goroutines on lib/pq, and nothing around them.
package raw

import (
	"context"
	"database/sql"
	"fmt"
)

// The columns that claiming and finishing need, and the index of a lane. There are no triggers,
// counters, journals or checks.
const schemaSQL = `/* raw: set up */
CREATE TABLE bare_task (
  task_id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_at       timestamptz NOT NULL DEFAULT now(),
  created_at   timestamptz NOT NULL DEFAULT now(),
  leased_until timestamptz,
  lease_token  uuid,
  priority     smallint    NOT NULL DEFAULT 0,
  attempt      smallint    NOT NULL DEFAULT 0,
  state        text        NOT NULL DEFAULT 'ready',
  task_type    text        NOT NULL,
  payload      jsonb       NOT NULL DEFAULT '{}'
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX bare_task_lane ON bare_task (task_type, priority, attempt, task_id) WHERE state = 'ready'`

const fillSQL = `/* raw: fill */
INSERT INTO bare_task (task_type, payload) SELECT $1, $2::jsonb FROM generate_series(1, $3::int)`

// Setup makes the table.
func Setup(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, schemaSQL)
	if err != nil {
		return fmt.Errorf("raw: set up: %w", err)
	}
	return nil
}

// Fill adds n tasks that are ready.
func Fill(ctx context.Context, db *sql.DB, taskType string, n int, payload string) error {
	if _, err := db.ExecContext(ctx, fillSQL, taskType, payload, n); err != nil {
		return fmt.Errorf("raw: fill: %w", err)
	}
	return nil
}
