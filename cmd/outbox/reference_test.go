package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// reference has each command and flag, as this test writes it.
const reference = "../../docs/reference/command-line.md"

func TestTheReferenceHasEachCommandAndFlag(t *testing.T) {
	page := referencePage()
	if *update {
		if err := os.WriteFile(reference, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(reference); err != nil || string(text) != page {
		t.Errorf("%s is not as the commands are (%v): in cmd/outbox, go test . -run Reference -update", reference,
			err)
	}
}

func referencePage() string {
	var b strings.Builder
	b.WriteString(`# Reference of the command line

<!-- Made by go test . -run Reference -update in cmd/outbox. -->

[Command line](../tools/command-line.md) shows the commands at work, and has the
[exit codes and JSON](../tools/command-line.md#scripts). ` + "`outbox help COMMAND`" + ` prints the details.
Flags have one dash or two.

## Commands

| command | does |
|---|---|
`)
	root := (&app{}).root()
	type row struct {
		name, value, initial, about string
		of                          []string
	}
	var rows []row
	add := func(command string, flags *pflag.FlagSet) {
		flags.VisitAll(func(f *pflag.Flag) {
			value := map[string]string{
				"bool": "", "stringArray": "string, may be repeated", "stringSlice": "strings, by commas",
			}
			kind, found := value[f.Value.Type()]
			if !found {
				kind = f.Value.Type()
			}
			r := row{f.Name, kind, f.DefValue, f.Usage, []string{command}}
			if slices.Contains([]string{"false", "[]"}, r.initial) {
				r.initial = ""
			}
			for i, old := range rows {
				if old.name == r.name && old.value == r.value && old.initial == r.initial && old.about == r.about {
					rows[i].of = append(old.of, command)
					return
				}
			}
			rows = append(rows, r)
		})
	}
	add("all commands", root.PersistentFlags())
	for _, c := range commands(root) {
		use := strings.ReplaceAll(strings.TrimPrefix(c.UseLine(), "outbox "), " [flags]", "")
		fmt.Fprintf(&b, "| `outbox %s` | %s |\n", strings.ReplaceAll(use, "|", `\|`), cell(c.Short))
		add("`"+pathOf(c)+"`", c.LocalNonPersistentFlags())
	}
	b.WriteString("\n## Flags\n\n| flag | value | default | meaning | of |\n|---|---|---|---|---|\n")
	slices.SortStableFunc(rows, func(a, b row) int { return strings.Compare(a.name, b.name) })
	for _, r := range rows {
		fmt.Fprintf(&b, "| `-%s` | %s | %s | %s | %s |\n", r.name, r.value, cell(r.initial), cell(r.about),
			strings.Join(r.of, ", "))
	}
	b.WriteString(`
## Environment

| variable | meaning |
|---|---|
| ` + "`OUTBOX_DATABASE_URL`" + ` | the connection string, without ` + "`-database-url`" + ` |
| ` + "`OUTBOX_SERVE_PASSWORD`" + ` | the password of ` + "`outbox serve`" + ` |
| ` + "`PGHOST`, `PGPORT`" + ` and others of libpq | settings that the connection string does not have |
`)
	return b.String()
}

// cell is a text in a cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "*", `\*`, "\n", " ", "`", "").Replace(text)
}

// Each constant of an exit code has a meaning in TestTheExitCodesAreThoseOfTheDocumentation.
func TestTheReferenceOfExitCodesIsComplete(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "main.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		if d, ok := n.(*ast.GenDecl); ok && d.Tok == token.CONST {
			for _, s := range d.Specs {
				for _, name := range s.(*ast.ValueSpec).Names {
					if strings.HasPrefix(name.Name, "exit") {
						names = append(names, name.Name)
					}
				}
			}
		}
		return true
	})
	if len(names) != len(exitCodes) {
		t.Errorf("main.go has the codes %v, the documentation %d of them", names, len(exitCodes))
	}
}
