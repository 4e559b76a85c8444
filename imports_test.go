package outbox_test

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Imports point one way: relay, handlers, outbox; dashboard, admin, outbox, and relay never imports
// admin, which is for operators; schema stands alone. What is not listed is refused.
var allowedImports = map[string][]string{
	"": {
		"/internal/copied", "/internal/counts", "/internal/key", "/internal/pgerr", "/internal/txcheck", "/internal/wake",
		"github.com/lib/pq",       // arrays of EnqueueMany
		"github.com/jmoiron/sqlx", // sqlx_adapter.go
	},
	"/admin": {
		"", "/internal/key", "/internal/origin", "/internal/pg", "/internal/pgerr",
		"/internal/upkeep",  // hands back as a takeover does
		"/internal/wake",    // relays of this process, after a hand back
		"github.com/lib/pq", // arrays of ids, names of indexes
	},
	"/doctor": {
		"", "/internal/origin", "/internal/pg", "/internal/pgerr", "/internal/vacuum", "/schema",
		"/admin", // types, with what holds for them
	},
	"/forward":          {"", "/handlers", "/internal/copied", "/internal/handler"},
	"/inbox":            {"", "/internal/txcheck"},
	"/handlers":         {"", "/internal/guard", "/internal/handler", "/internal/shape", "github.com/sethvargo/go-retry"},
	"/internal/handler": {"", "/internal/guard", "github.com/sethvargo/go-retry"},
	"/pgdb":             {"/internal/guard", "/internal/pgerr", "github.com/lib/pq"},
	"/schema":           {"/internal/pgerr", "github.com/sethvargo/go-retry"},
	"/internal/copied":  {},
	"/internal/counts":  {},
	"/internal/guard":   {},
	"/internal/key":     {},
	"/internal/origin":  {"/internal/pg"},
	"/internal/pg":      {"/internal/guard", "/internal/pgerr", "github.com/lib/pq", "github.com/sethvargo/go-retry"},
	"/internal/pgerr":   {"/internal/guard"},
	"/internal/plan":    {},
	"/internal/shape":   {},
	"/internal/run": { // the only part that knows handlers and tasks
		"", "/handlers", "/internal/guard", "/internal/handler", "/internal/key", "/internal/pg", "/internal/pgerr", "/internal/plan", "/internal/store",
		"github.com/lib/pq", // arrays
	},
	"/dashboard": {"", "/admin", "/internal/pgerr"},
	"/internal/schedule": {
		"", "/internal/guard", "/internal/pg", "/internal/pgerr", "/internal/wake",
		"github.com/lib/pq", // arrays
	},
	"/internal/store": {
		"", "/internal/pg", "/internal/pgerr",
		"github.com/lib/pq", // arrays and literals
	},
	"/internal/upkeep": {
		"/internal/counts", "/internal/origin", "/internal/pg", "/internal/pgerr", "/internal/vacuum",
		"github.com/lib/pq", // arrays
	},
	"/internal/txcheck": {},
	"/internal/vacuum":  {},
	"/internal/wake":    {},
	"/outboxtest": {
		"", "/handlers", "/internal/run",
		"/internal/origin",        // a copy is refused
		"/internal/shape",         // of payloads, for Golden
		"/internal/pg",            // the schema's name in a statement
		"/internal/store",         // headers as handlers get them
		"github.com/lib/pq",       // arrays
		"github.com/jmoiron/sqlx", // Drain takes its transactions and pools
	},
	"/relay": {
		"", "/handlers", "/schema", "/internal/guard", "/internal/handler", "/internal/origin", "/internal/pg", "/internal/pgerr",
		"/internal/plan", "/internal/run", "/internal/schedule", "/internal/store", "/internal/upkeep", "/internal/wake",
		"github.com/lib/pq", // arrays
	},
}

func TestImportsPointOneWay(t *testing.T) {
	t.Parallel()
	for _, p := range corePackages(t) {
		allowed := allowedImports[strings.TrimPrefix(p.ImportPath, module)]
		for _, i := range p.Imports {
			standard := !strings.Contains(strings.Split(i, "/")[0], ".")
			if !standard && !slices.Contains(allowed, strings.TrimPrefix(i, module)) {
				t.Errorf("%s imports %s", p.ImportPath, i)
			}
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
				if i.Path.Value == strconv.Quote("github.com/jmoiron/sqlx") && name != "sqlx_adapter.go" {
					t.Errorf("%s imports sqlx", name)
				}
			}
		}
	}
}
