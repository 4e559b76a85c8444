// Package faultmap reads the tables of docs/faults.md, so that tests hold the code to them.
package faultmap

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Table is the table below the given heading of docs/faults.md: a map of column to cell for each
// row, without backquotes. It fails the test where there is none.
func Table(t testing.TB, heading string) (rows []map[string]string) {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	text, err := os.ReadFile(filepath.Join(filepath.Dir(here), "../../../docs/faults.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "# "+heading+"\n")
	if !found {
		t.Fatalf("docs/faults.md has no heading %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n#")
	var columns []string
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|--") || strings.HasPrefix(line, "| --") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		row := map[string]string{}
		for i, cell := range cells {
			cell = strings.ReplaceAll(strings.TrimSpace(cell), "`", "")
			cells[i] = cell
			if i < len(columns) {
				row[columns[i]] = cell
			}
		}
		if columns == nil {
			columns = cells
			continue
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		t.Fatalf("docs/faults.md has no table below %q", heading)
	}
	return rows
}

// Check makes each error that a table of docs/faults.md names, and compares its fault with the
// table's. made makes the errors by name. other, which may be nil, makes those of further names, and
// returns none for a name that it does not know.
func Check(t *testing.T, heading string, fault func(error) string, made map[string]func() error,
	other func(name string) []error) {
	t.Helper()
	tabled := map[string]bool{}
	for _, row := range Table(t, heading) {
		for name := range strings.SplitSeq(row["error"], ", ") {
			var errs []error
			switch tabled[name] = true; {
			case made[name] != nil:
				errs = []error{made[name]()}
			case other != nil:
				errs = other(name)
			}
			if len(errs) == 0 {
				t.Errorf("no test makes the error %q", name)
			}
			for _, err := range errs {
				if got := fault(err); got != row["whose fault"] {
					t.Errorf("%s: %s, want %s: %v", name, got, row["whose fault"], err)
				}
			}
		}
	}
	for name := range made {
		if !tabled[name] {
			t.Errorf("docs/faults.md does not name the error %q", name)
		}
	}
}
