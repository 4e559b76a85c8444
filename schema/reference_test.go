package schema

import (
	"database/sql"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference/sql.md")

const reference = "../docs/reference/sql.md"

// insertable are the columns that an INSERT may have, by docs/stability.md.
const insertable = "task_type payload headers priority run_at max_attempts timeout_ms expires_at unique_key " +
	"unique_until_done unique_until ordering_key skip_failed group_key"

// covered says for which statements a column is promised.
func covered(table, column string) string {
	var out []string
	if strings.Contains(", "+surface[table]+" ", ", "+column+" ") {
		out = append(out, "read")
	}
	if table == "task" || table == "keyed_task" {
		if slices.Contains(strings.Fields(insertable), column) || column == "on_conflict" {
			out = append(out, "insert")
		}
	}
	return strings.Join(out, ", ")
}

// purposes are what is in each table and view. Those of the surface come first, in this order.
var purposes = [][2]string{
	{"task", "The tasks that wait or run. A finished task is deleted."},
	{"keyed_task", "A view to insert into: it enqueues by unique key, and returns the outcome."},
	{"dead_task", "The dead letters."},
	{"done_task", "The history: finished tasks of types with `handlers.Retention`."},
	{"relay", "The relay processes."},
	{"migration", "The versions of the schema."},
	{"audit", "The actions of operators."},
	{"bucket", "the token bucket of each type with `handlers.Rate`"},
	{"cancel", "requests to cancel running tasks"},
	{"counter", "how many tasks there are, by type and kind, without the changes in counter_log"},
	{"counter_log", "changes of the counts that no relay has added to counter yet"},
	{"headless_key", "ordering keys whose next task a relay may have to make ready"},
	{"identity", "the id of the database"},
	{"inbox", "events that a consumer has handled, of package inbox"},
	{"maintenance", "when each job of maintenance is due"},
	{"origin", "the database and the environment that the tasks belong to"},
	{"place_request", "group keys that may have a free place for a task"},
	{"promote_lock", "a row, which a relay locks while it makes tasks of ordering keys ready"},
	{"running", "runs of Tx and Batch tasks that have not committed, and lost runs"},
	{"sample", "the counts of each type, once a minute, for a day"},
	{"schedule", "the schedules, of the code and stored"},
	{"slot", "the places of types with `handlers.MaxRunning`"},
	{"task_type", "types that are paused or limited"},
	{"unique_key", "the task that has each unique key, or had it last"},
	{"unowned_schedule", "schedules of the code that no living relay fires"},
}

// meanings are of columns without a comment in the database.
var meanings = map[string]string{
	"task_id": "its id", "task_type": "its type", "state": "its `admin.State`; `retrying` is stored as `scheduled`",
	"created_at":   "when the transaction began that enqueued it",
	"run_at":       "when it is due",
	"attempted_at": "when its latest attempt began; NULL: never",
	"last_error":   "the error of the latest attempt that failed; NULL: none", "payload": "its payload",
	"headers": "its headers; NULL: none", "leased_until": "the end of its lease",
	"dead_task.died_at":    "when it became a dead letter",
	"dead_task.run_at":     "when it was due",
	"done_task.run_at":     "when it was due",
	"dead_task.unique_key": "the key that it was enqueued with; NULL: none",
	"done_task.unique_key": "the key that it was enqueued with; NULL: none",
	"dead_task.state":      "`dead`",
	"done_task.state":      "`finished`",
	"finished_at":          "when it finished",
	"result":               "what `outbox.Task.SetResult` stored; NULL: none",
	"host":                 "the host's name",
	"pid":                  "the id of the process",
	"started_at":           "when it started",
	"alive_until":          "a heartbeat moves it on; when it is past, the relay is dead",
	"task_types":           "the types that it has a handler for",
	"version":              "the number of the migration",
	"applied_at":           "when it was applied",
	"at":                   "when the transaction of the action began",
	"actor":                "the user, as the writer names it",
	"tool":                 "the program",
	"action":               "an `admin.Action`; the second entry of an action ends in `: done` or `: failed`",
	"target":               "a type, an id, or a filter in words",
	"count":                "how many tasks",
	"keyed_task.task_id":   "RETURNING: the task that has the key",
}

// calls are the functions that apps may call.
var calls = map[string]string{
	"cancel_task":  "deletes a waiting task (`canceled`), asks a running one to end (`requested`), or `not_found`",
	"run_task_now": "makes a scheduled task due; whether such a task was scheduled",
	"task_end": "how far a task is: `state` (`open`, `done`, `dead` or `gone`), `reason`, `error`, `result`, " +
		"`asked`, `kept`",
}

var roleNames = []string{"enqueuer", "worker", "operator", "viewer"}

const (
	columnsSQL = `SELECT attname, format_type(atttypid, atttypmod), COALESCE(pg_get_expr(adbin, adrelid), ''),
		COALESCE(col_description(attrelid, attnum), ''), %s
		FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
		WHERE attrelid = '<schema>.%s'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum`
	functionsSQL = `SELECT p.oid::regprocedure::text, pg_get_function_result(p.oid), prosecdef::text, '', %s
		FROM pg_proc p WHERE pronamespace = <ns> AND prorettype <> 'trigger'::regtype ORDER BY proname, 1`
	tablesSQL = `SELECT relname, '', '', '', %s FROM pg_class c
		WHERE relnamespace = <ns> AND relkind IN ('r', 'v') ORDER BY relname`
	sequencesSQL = `SELECT relname, '', '', '', %s FROM pg_class c
		WHERE relnamespace = <ns> AND relkind = 'S' ORDER BY relname`
)

// rightsSQL are a column of a query for each role, with the letters of its privileges.
func rightsSQL(test string, privileges ...string) string {
	var out []string
	for _, role := range roleNames {
		var letters []string
		for _, p := range privileges {
			letters = append(letters, fmt.Sprintf("CASE WHEN %s THEN '%s ' END",
				fmt.Sprintf(test, "'<schema>_"+role+"'", "'"+p+"'"), strings.ToLower(p)))
		}
		out = append(out, "rtrim(concat("+strings.Join(letters, ", ")+"))")
	}
	return strings.Join(out, ", ")
}

// facts are the rows of one of the queries.
func facts(t *testing.T, db *sql.DB, name, query string) (out [][]string) {
	t.Helper()
	query = strings.NewReplacer("<schema>", name, "<ns>", `'"`+name+`"'::regnamespace`).Replace(query)
	rows, err := db.QueryContext(t.Context(), query)
	noErr(t, err)
	defer rows.Close()
	for rows.Next() {
		row := make([]string, 4+len(roleNames))
		var to []any
		for i := range row {
			to = append(to, &row[i])
		}
		noErr(t, rows.Scan(to...))
		for i := range row {
			row[i] = strings.NewReplacer(`"`+name+`".`, "", name+".", "", name, "outbox", "select", "read",
				"|", `\|`).Replace(row[i])
		}
		out = append(out, row)
	}
	noErr(t, rows.Err())
	return out
}

// sqlPage is the page, as the schema and the roles of a database are.
func sqlPage(t *testing.T, db *sql.DB, name string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(`# Reference of the SQL schema

<!-- Made by go test ./schema -run Reference -update. -->

[Stability](../stability.md#the-sql-surface) says what "covered" promises. All else here may change
with each version. The [roles](../security.md#roles) of a schema with another name begin with that
name. The owner may do everything.

## Covered tables
`)
	columnRights := rightsSQL("has_column_privilege(%s, attrelid, attnum, %s)", "SELECT", "INSERT", "UPDATE")
	const roles = "enqueuer | worker | operator | viewer |"
	ofTasks := map[string]string{}
	for _, p := range purposes {
		if surface[p[0]] == "" {
			continue
		}
		fmt.Fprintf(&b, "\n### outbox.%s\n\n%s\n\n| column | type | default | covered | meaning | %s\n"+
			"|---|---|---|---|---|---|---|---|---|\n", p[0], p[1], roles)
		for _, row := range facts(t, db, name, fmt.Sprintf(columnsSQL, columnRights, p[0])) {
			about := row[3]
			for _, key := range []string{row[0], p[0] + "." + row[0]} {
				if meanings[key] != "" && (about == "" || key != row[0]) {
					about = meanings[key]
				}
			}
			if p[0] == "task" {
				ofTasks[row[0]] = about
			} else if about == "" && (strings.HasSuffix(p[0], "_task")) {
				about = ofTasks[row[0]] // which has more comments
			}
			promise := covered(p[0], row[0])
			if promise != "" && about == "" {
				t.Errorf("%s.%s has no meaning: add it to meanings", p[0], row[0])
			}
			value := row[2]
			if value != "" {
				value = "`" + value + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", row[0], row[1], value, promise, about,
				strings.Join(row[4:], " | "))
		}
	}
	functionRights := rightsSQL("has_function_privilege(%s, p.oid, %s)", "EXECUTE")
	fmt.Fprintf(&b, "\n## Covered functions\n\n| function | result | meaning | %s\n|---|---|---|---|---|---|---|\n",
		roles)
	var others strings.Builder
	for _, row := range facts(t, db, name, fmt.Sprintf(functionsSQL, functionRights)) {
		short, _, _ := strings.Cut(row[0], "(")
		switch {
		case calls[short] != "":
			fmt.Fprintf(&b, "| `outbox.%s` | %s | %s | %s |\n", row[0], row[1], calls[short],
				strings.Join(row[4:], " | "))
		case strings.Join(row[4:], "") != "":
			owner := map[string]string{"true": "owner's", "false": "caller's"}[row[2]]
			fmt.Fprintf(&others, "| `outbox.%s` | %s | %s |\n", row[0], owner, strings.Join(row[4:], " | "))
		}
	}
	b.WriteString("\nThese run with the owner's rights. An enqueuer [needs a grant](../security.md#roles).\n")
	tableRights := rightsSQL("has_any_column_privilege(%s, c.oid, %s)", "SELECT", "INSERT", "UPDATE") + "\n"
	deletes := rightsSQL("has_table_privilege(%s, c.oid, %s)", "DELETE")
	fmt.Fprintf(&b, "\n## Other tables and views\n\nA right may be of some columns only.\n\n| table | has | %s\n"+
		"|---|---|---|---|---|---|\n", roles)
	var deletable []string
	rows := facts(t, db, name, fmt.Sprintf(tablesSQL, tableRights))
	mayDelete := facts(t, db, name, fmt.Sprintf(tablesSQL, deletes))
	for i, row := range rows {
		at := slices.IndexFunc(purposes, func(p [2]string) bool { return p[0] == row[0] })
		if at < 0 {
			t.Errorf("the table %s has no purpose: add it to purposes", row[0])
			continue
		}
		for j := range roleNames {
			row[4+j] = strings.TrimSpace(row[4+j] + " " + mayDelete[i][4+j])
		}
		if surface[row[0]] == "" {
			fmt.Fprintf(&b, "| `outbox.%s` | %s | %s |\n", row[0], purposes[at][1], strings.Join(row[4:], " | "))
		} else if strings.Contains(strings.Join(mayDelete[i][4:], " "), "delete") {
			deletable = append(deletable, fmt.Sprintf("| `outbox.%s` | %s |\n", row[0],
				strings.Join(mayDelete[i][4:], " | ")))
		}
	}
	fmt.Fprintf(&b, "\nOf the covered tables these roles may delete rows:\n\n| table | %s\n|---|---|---|---|---|\n%s",
		roles, strings.Join(deletable, ""))
	fmt.Fprintf(&b, "\n## Other functions\n\nRelays and tools call these.\n\n| function | rights | %s\n"+
		"|---|---|---|---|---|---|\n%s", roles, others.String())
	fmt.Fprintf(&b, "\n## Sequences\n\n| sequence | %s\n|---|---|---|---|---|\n", roles)
	for _, row := range facts(t, db, name, fmt.Sprintf(sequencesSQL,
		rightsSQL("has_sequence_privilege(%s, c.oid, %s)", "SELECT", "UPDATE"))) {
		fmt.Fprintf(&b, "| `outbox.%s` | %s |\n", row[0], strings.Join(row[4:], " | "))
	}
	return b.String()
}

func TestTheSQLReferenceIsAsTheSchemaIs(t *testing.T) {
	_, db, name := grantedSchema(t)
	page := sqlPage(t, db, name)
	if *update {
		noErr(t, os.WriteFile(reference, []byte(page), 0o644))
	}
	if text, err := os.ReadFile(reference); err != nil || string(text) != page {
		t.Errorf("%s is not as the schema is (%v): go test ./schema -run Reference -update", reference, err)
	}
}
