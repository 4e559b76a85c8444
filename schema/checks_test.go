package schema

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

// likeTask has the CHECKs that the table of tasks had before its triggers did their work.
const likeTask = `CREATE TABLE like_task (LIKE outbox.task INCLUDING DEFAULTS,
  CHECK (state IN ('ready', 'scheduled', 'leased') OR state = 'waiting' AND ordering_key IS NOT NULL),
  CHECK ((state = 'leased') = (lease_token IS NOT NULL) AND (lease_token IS NULL OR relay_id IS NOT NULL)
     AND (leased_until IS NULL OR lease_token IS NOT NULL)),
  CHECK (octet_length(task_type) BETWEEN 1 AND 128 AND task_type !~ '[[:cntrl:]]'),
  CHECK (attempt >= 0),
  CHECK (max_attempts > 0),
  CHECK (jsonb_typeof(headers) = 'object'),
  CHECK (isfinite(run_at) AND run_at < '10000-01-01 00:00:00+00' AND isfinite(created_at) AND created_at < '10000-01-01 00:00:00+00'
     AND isfinite(attempted_at) AND attempted_at < '10000-01-01 00:00:00+00'))`

// outcome says what becomes of a statement, and takes it back.
const outcome = `CREATE FUNCTION outcome(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE statement;
  RAISE SQLSTATE 'OBXOK';
EXCEPTION
  WHEN check_violation THEN RETURN 'refused';
  WHEN SQLSTATE 'OBXOK' THEN RETURN 'taken';
END
$$`

func TestTheTableRefusesWhatItsChecksRefused(t *testing.T) {
	db := open(t, pgtest.Database(t))
	migrate(t, db)
	run(t, db, likeTask)
	run(t, db, outcome)
	run(t, db, "INSERT INTO like_task (task_id, task_type) VALUES (0, 'here'); INSERT INTO outbox.task (task_type) VALUES ('here')")
	const uuid = "'00000000-0000-0000-0000-000000000001'"
	values := map[string][]string{
		"state":        {"'ready'", "'ready'", "'scheduled'", "'leased'", "'leased'", "'waiting'", "'done'", "''"},
		"ordering_key": {"NULL", "NULL", "'k'"},
		"lease_token":  {"NULL", "NULL", uuid},
		"relay_id":     {"NULL", uuid},
		"leased_until": {"NULL", "NULL", "now()"},
		"task_type":    {"'T'", "'T'", "'T'", "'T'", "'T'", "''", "repeat('x', 128)", "repeat('x', 129)", "repeat('ä', 65)", `E'a\nb'`, `E'\n'`, `E'a\n'`, `E'\u007f'`, `E'a\u0085'`, "'ü \u00a0\u2028'"},
		"attempt":      {"0", "0", "0", "1", "-1"},
		"max_attempts": {"NULL", "NULL", "1", "0", "-1"},
		"headers":      {"NULL", "NULL", "'{}'", "'[]'", "'null'"},
		"run_at":       {"now()", "now()", "now() + interval '1 hour'", "'-infinity'", "'infinity'", "'9999-12-31 23:59:59.999999+00'", "'10000-01-01 00:00:00+00'", "'4713-01-01 00:00:00+00 BC'"},
		"created_at":   {"now()", "now()", "now()", "'-infinity'", "'infinity'", "'10000-01-01 00:00:00+00'"},
		"attempted_at": {"NULL", "NULL", "now()", "'-infinity'", "'infinity'", "'10000-01-01 00:00:00+00'"},
	}
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	statements := func(table string, columns, row []string) map[string]string {
		set, legal := make([]string, len(columns)), make([]string, len(columns))
		for i, c := range columns {
			set[i], legal[i] = c+" = "+row[i], values[c][0]
		}
		insert := func(rows ...[]string) string {
			names, lines := strings.Join(columns, ", "), make([]string, len(rows))
			for i, r := range rows {
				lines[i] = "(" + strings.Join(r, ", ") + ")"
				if table == "like_task" {
					lines[i] = fmt.Sprintf("(%d, %s)", i+1, strings.Join(r, ", "))
				}
			}
			if table == "like_task" {
				names = "task_id, " + names
			}
			return "INSERT INTO " + table + " (" + names + ") VALUES " + strings.Join(lines, ", ")
		}
		return map[string]string{
			"alone":    insert(row),
			"as fifth": insert(legal, legal, legal, legal, row), // a trigger has two ways to check
			"update":   "UPDATE " + table + " SET " + strings.Join(set, ", "),
		}
	}
	seen := map[string]int{}
	for range 200 {
		var columns, row []string
		for column, choices := range values {
			if column == "task_type" || random.IntN(3) == 0 {
				columns, row = append(columns, column), append(row, choices[random.IntN(len(choices))])
			}
		}
		before := statements("like_task", columns, row)
		for how, statement := range statements("outbox.task", columns, row) {
			w := scan[string](t, db, "SELECT outcome($statement$"+before[how]+"$statement$)")
			if got := scan[string](t, db, "SELECT outcome($statement$"+statement+"$statement$)"); got != w {
				t.Errorf("seed %d: %s is %s, was %s", seed, statement, got, w)
			}
			seen[fmt.Sprint(how, " ", w)]++
		}
	}
	if len(seen) != 6 {
		t.Errorf("saw only %v", seen)
	}
}
