package repotest

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// direction is the packages that a package may import, besides those of Go, and the reason.
type direction struct {
	why     string
	imports []string
}

const (
	pq       = "github.com/lib/pq" // arrays and literals
	goRetry  = "github.com/sethvargo/go-retry"
	sqlxPath = "github.com/jmoiron/sqlx"
)

// directions are of all packages that users import and of what these import. A package or an import
// that is not listed is refused.
var directions = map[string]direction{
	"": {"an app that only enqueues compiles no code that runs tasks",
		[]string{"/internal/copied", "/internal/counts", "/internal/key", "/internal/tasklease", "/internal/pgerr", "/internal/schemaname",
			"/internal/txcheck", "/internal/wake", pq, sqlxPath}},
	"/handlers": {"an app declares its handlers without a relay or a database",
		[]string{"", "/internal/guard", "/internal/handler", "/internal/shape"}},
	"/relay": {"a relay starts all parts and knows no operator's tool",
		[]string{"", "/handlers", "/schema", "/internal/access", "/internal/guard", "/internal/handler", "/internal/origin", "/internal/pg",
			"/internal/pgerr", "/internal/schemaname",
			"/internal/plan", "/internal/call", "/internal/decide", "/internal/leaserun", "/internal/report", "/internal/txrun", "/internal/schedule", "/internal/store", "/internal/upkeep",
			"/internal/wake", "/internal/writable", pq}},
	"/schema": {"a migration tool compiles nothing else",
		[]string{"/internal/pgerr", "/internal/schemaname", "/internal/writable", goRetry}},
	"/outboxtest": {"tests of apps run tasks as a relay does, with sqlx too",
		[]string{"", "/handlers", "/internal/apptx", "/internal/call", "/internal/decide", "/internal/handler", "/internal/tasklease", "/internal/leaserun", "/internal/pgerr", "/internal/origin", "/internal/pg", "/internal/plan",
			"/internal/txrun", "/internal/schemaname", "/internal/shape", "/relay",
			"/internal/store", pq, sqlxPath}},

	"/admin": {"operators read and change rows; a hand back is upkeep's takeover",
		[]string{"", "/internal/key", "/internal/origin", "/internal/pg", "/internal/pgerr", "/internal/schemaname", "/internal/timeline",
			"/internal/upkeep", "/internal/wake", pq}},
	"/doctor": {"checks read the schema, and use admin's types and the words for operators",
		[]string{"", "/admin", "/internal/access", "/internal/origin", "/internal/pg", "/internal/pgerr", "/internal/schemaname", "/internal/taskview", "/schema"}},
	"/dashboard": {"pages read and act through admin alone",
		[]string{"", "/admin", "/internal/pgerr", "/internal/taskview"}},
	"/internal/taskview": {"texts for operators send no SQL; of outbox they use reasons", []string{"", "/admin"}},

	"/forward": {"a publisher is a handler; it knows no relay",
		[]string{"", "/handlers", "/internal/copied", "/internal/handler"}},
	"/internal/publisher": {"parts of publishers know no broker",
		[]string{"/forward", "/handlers"}},
	"/inbox": {"a consumer needs no handlers",
		[]string{"", "/internal/schemaname", "/internal/txcheck"}},
	"/pgdb": {"a pool knows no task",
		[]string{"/internal/guard", "/internal/pgerr", pq}},

	"/internal/call": {"a call knows no SQL and no task",
		[]string{"", "/handlers", "/internal/guard", "/internal/handler", "/internal/pgerr"}},
	"/internal/decide": {"decisions are pure: of store they use the row and the change, of outbox kinds and reasons",
		[]string{"", "/handlers", "/internal/call", "/internal/handler", "/internal/pgerr", "/internal/store"}},
	"/internal/report": {"logs and observers learn what was decided and recorded",
		[]string{"", "/internal/call", "/internal/decide", "/internal/handler", "/internal/key", "/internal/pgerr", "/internal/store"}},
	"/internal/apptx": {"the one ending of transactions in which an app writes knows no claim and no lease",
		[]string{"/internal/call", "/internal/decide", "/internal/pg", "/internal/pgerr", "/internal/report", "/internal/store"}},
	"/internal/txrun": {"Tx, Batch and groups know no lease",
		[]string{"/internal/apptx", "/internal/call", "/internal/decide", "/internal/handler", "/internal/pg", "/internal/pgerr",
			"/internal/plan", "/internal/report", "/internal/store", ""}},
	"/internal/leaserun": {"leases know no claim of Tx and Batch",
		[]string{"", "/internal/apptx", "/internal/call", "/internal/decide", "/internal/guard", "/internal/handler", "/internal/tasklease", "/internal/pg",
			"/internal/pgerr", "/internal/plan", "/internal/report", "/internal/store"}},
	"/internal/store": {"statements know no handler",
		[]string{"", "/internal/pg", "/internal/pgerr", "/internal/plan", "/internal/timeline", pq}},
	"/internal/upkeep": {"upkeep changes rows by SQL and knows no handler",
		[]string{"/internal/counts", "/internal/origin", "/internal/pg", "/internal/pgerr", pq}},
	"/internal/schedule": {"a schedule enqueues as an app does",
		[]string{"", "/internal/guard", "/internal/pg", "/internal/pgerr", "/internal/wake", pq}},
	"/internal/access":     {"rights and objects are read from the schema's scripts", []string{"/internal/pgerr", "/internal/schemaname", "/schema"}},
	"/internal/origin":     {"the database's identity is read over pg", []string{"/internal/pg"}},
	"/internal/pg":         {"connections know no task", []string{"/internal/guard", "/internal/pgerr", pq, goRetry}},
	"/internal/handler":    {"middleware and results know no SQL", []string{"", "/internal/guard", "/internal/tasklease", goRetry}},
	"/internal/pgerr":      {"errors of drivers are read without the drivers", []string{"/internal/guard"}},
	"/internal/plan":       {"decisions are pure", nil},
	"/internal/copied":     {"a leaf", nil},
	"/internal/counts":     {"a leaf", nil},
	"/internal/guard":      {"a leaf", nil},
	"/internal/key":        {"a leaf", nil},
	"/internal/tasklease":  {"a leaf", nil},
	"/internal/schemaname": {"a leaf", nil},
	"/internal/shape":      {"a leaf", nil},
	"/internal/timeline":   {"a leaf", nil},
	"/internal/txcheck":    {"a leaf", nil},
	"/internal/writable":   {"a statement needs its errors alone", []string{"/internal/pgerr"}},
	"/internal/wake":       {"a leaf", nil},
}

func TestImportsPointOneWay(t *testing.T) {
	t.Parallel()
	for _, p := range corePackages(t) {
		d := directions[strings.TrimPrefix(p.ImportPath, module)]
		for _, i := range p.Imports {
			standard := !strings.Contains(strings.Split(i, "/")[0], ".")
			if !standard && !slices.Contains(d.imports, strings.TrimPrefix(i, module)) {
				t.Errorf("%s imports %s, but %s", p.ImportPath, i, d.why)
			}
		}
		for _, i := range d.imports {
			path := i
			if i == "" || i[0] == '/' {
				path = module + i
			}
			if !slices.Contains(p.Imports, path) {
				t.Errorf("%s does not import %s, which its direction lists", p.ImportPath, path)
			}
			if _, known := directions[i]; path != i && !known {
				t.Errorf("%s imports %s, which has no direction", p.ImportPath, path)
			}
		}
	}
}

// The tests of what an app imports are in its module graph, with all that they import.
func TestNoTestImportsTheStartersOfServers(t *testing.T) {
	t.Parallel()
	list := exec.Command("go", "list", "-f",
		`{{.ImportPath}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}`, "./...")
	var said strings.Builder
	list.Stderr = &said
	out, err := list.Output()
	if err != nil {
		t.Fatal(err, said.String())
	}
	for line := range strings.Lines(string(out)) {
		p, imports, _ := strings.Cut(line, " ")
		starts := strings.Contains(imports, "dockertest") || strings.Contains(imports, "embedded-postgres")
		if starts != (p == module+"/internal/testing/devpg/provide") {
			t.Errorf("%s imports dockertest or embedded-postgres: %t; only internal/testing/devpg/provide does, which go run builds", p, starts)
		}
	}
}

func TestSqlxIsImportedByItsAdapterOnly(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		if p.ImportPath != module {
			continue
		}
		for _, file := range p.files {
			name := filepath.Base(fset.Position(file.Package).Filename)
			for _, i := range file.Imports {
				if i.Path.Value == strconv.Quote(sqlxPath) && name != "sqlx_adapter.go" {
					t.Errorf("%s imports sqlx", name)
				}
			}
		}
	}
}
