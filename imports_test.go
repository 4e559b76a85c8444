package outbox_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/txoutbox/outbox"

// Imports point one way: relay, handlers, outbox; dashboard, admin, outbox, and relay never imports
// admin, which is for operators; schema stands alone. What is not listed is refused.
var allowedImports = map[string][]string{
	"": {
		"/internal/counts", "/internal/pgerr", "/internal/wake",
		"github.com/lib/pq",       // arrays of EnqueueMany
		"github.com/jmoiron/sqlx", // sqlx_adapter.go
	},
	"/admin": {
		"", "/internal/pg", "/internal/pgerr",
		"/internal/upkeep",  // hands back as a takeover does
		"/internal/wake",    // relays of this process, after a hand back
		"github.com/lib/pq", // arrays of ids, names of indexes
	},
	"/doctor":           {"", "/internal/pgerr", "/internal/vacuum", "/schema"},
	"/handlers":         {"", "/internal/guard", "/internal/handler", "github.com/sethvargo/go-retry"},
	"/internal/handler": {"", "/internal/guard", "github.com/sethvargo/go-retry"},
	"/pgdb":             {"/internal/pgerr", "github.com/lib/pq"},
	"/schema":           {"/internal/pgerr", "github.com/sethvargo/go-retry"},
	"/internal/counts":  {},
	"/internal/guard":   {},
	"/internal/pg":      {"/internal/pgerr", "github.com/lib/pq", "github.com/sethvargo/go-retry"},
	"/internal/pgerr":   {"/internal/guard"},
	"/internal/plan":    {},
	"/internal/run": { // the only part that knows handlers and tasks
		"", "/handlers", "/internal/guard", "/internal/handler", "/internal/pg", "/internal/pgerr", "/internal/plan", "/internal/store",
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
		"/internal/counts", "/internal/pg", "/internal/pgerr", "/internal/vacuum",
		"github.com/lib/pq", // arrays
	},
	"/internal/vacuum": {},
	"/internal/wake":   {},
	"/outboxtest": {
		"", "/handlers", "/internal/run",
		"github.com/lib/pq",       // arrays
		"github.com/jmoiron/sqlx", // Drain takes its transactions and pools
	},
	"/relay": {
		"", "/handlers", "/schema", "/internal/guard", "/internal/handler", "/internal/pg", "/internal/pgerr",
		"/internal/plan", "/internal/run", "/internal/schedule", "/internal/store", "/internal/upkeep", "/internal/wake",
		"github.com/lib/pq", // arrays
	},
}

func TestImportsPointOneWay(t *testing.T) {
	t.Parallel()
	cmd := osexec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		allowed, core := allowedImports[strings.TrimPrefix(p.ImportPath, module)]
		if !core {
			continue // examples and internal/devpg sit on top
		}
		seen++
		for _, i := range p.Imports {
			standard := !strings.Contains(strings.Split(i, "/")[0], ".")
			if !standard && !slices.Contains(allowed, strings.TrimPrefix(i, module)) {
				t.Errorf("%s imports %s", p.ImportPath, i)
			}
		}
	}
	if seen != len(allowedImports) {
		t.Errorf("%d packages of the core were found, want %d", seen, len(allowedImports))
	}
}

func TestSqlxIsImportedByItsAdapterOnly(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	importers := []string{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(f, "_test.go") && strings.Contains(string(text), `"github.com/jmoiron/sqlx"`) {
			importers = append(importers, f)
		}
	}
	if want := []string{"sqlx_adapter.go"}; !slices.Equal(importers, want) {
		t.Errorf("sqlx is imported by %v, want %v", importers, want)
	}
}
