package outbox_test

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// names are what the documentation can name: of each package, by the name of its directory, and of all under "".
type names struct {
	api     map[string]map[string]bool // "Enqueue", "Config", "Config.Order", "Task.Complete"
	tests   map[string]map[string]bool // of Go's forms: Test…, Benchmark…, Fuzz…, Example…
	outputs map[string]map[string]bool // examples whose output is checked
	strings map[string]bool            // in tests: the names of subtests are among them
}

func add(set map[string]map[string]bool, pkg, name string) {
	for _, p := range []string{pkg, ""} {
		if set[p] == nil {
			set[p] = map[string]bool{}
		}
		set[p][name] = true
	}
}

func readNames(t *testing.T) names {
	n := names{map[string]map[string]bool{}, map[string]map[string]bool{}, map[string]map[string]bool{}, map[string]bool{}}
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.Contains(filepath.ToSlash(path), "/testdata/") {
			return err
		}
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		pkg := strings.TrimSuffix(file.Name.Name, "_test")
		if strings.HasSuffix(path, "_test.go") {
			n.addTests(pkg, file)
		} else if !strings.Contains(path, "internal") && pkg != "main" {
			n.addAPI(pkg, file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (n names) addTests(pkg string, file *ast.File) {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && testName.MatchString(f.Name.Name) {
			add(n.tests, pkg, f.Name.Name)
		}
	}
	for _, e := range doc.Examples(file) {
		if e.Output != "" {
			add(n.outputs, pkg, "Example"+e.Name)
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		if l, ok := node.(*ast.BasicLit); ok && l.Kind == token.STRING {
			s, _ := strconv.Unquote(l.Value)
			n.strings[s] = true
		}
		return true
	})
}

func (n names) addAPI(pkg string, file *ast.File) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = receiver(d.Recv.List[0].Type) + "." + name
			}
			add(n.api, pkg, name)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					for _, name := range s.Names {
						add(n.api, pkg, name.Name)
					}
				case *ast.TypeSpec:
					add(n.api, pkg, s.Name.Name)
					members(s.Type, func(name string) { add(n.api, pkg, s.Name.Name+"."+name) })
				}
			}
		}
	}
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func members(e ast.Expr, found func(string)) {
	var list *ast.FieldList
	switch e := e.(type) {
	case *ast.StructType:
		list = e.Fields
	case *ast.InterfaceType:
		list = e.Methods
	default:
		return
	}
	for _, f := range list.List {
		for _, name := range f.Names {
			found(name.Name)
		}
	}
}

var (
	testName  = regexp.MustCompile(`^(Test|Example|Benchmark|Fuzz)([A-Z_]|$)`)
	codeSpan  = regexp.MustCompile("`([^`\n]+)`")
	goBlock   = regexp.MustCompile("(?s)```go\n(.*?)```")
	anyBlock  = regexp.MustCompile("(?s)```.*?```")
	aTest     = regexp.MustCompile(`(?:\b([a-z]+)\.)?\b((?:Test|Example|Benchmark|Fuzz)(?:[A-Z_]\w*)?)\b`)
	qualified = regexp.MustCompile(`\b(outbox|admin|dashboard|doctor|handlers|outboxotel|outboxprom|outboxtest|pgdb|relay|schema)\.([A-Z]\w*)(?:\.([A-Z]\w*))?`)
	ofTask    = regexp.MustCompile(`\btask\.([A-Z]\w*)`)
	oneName   = regexp.MustCompile(`^([A-Z]\w*[a-z]\w*)(\.[A-Z]\w*)?(\(.*\))?$`)
)

// unknown are the names in a text of the documentation that the repository does not have.
func (n names) unknown(text string) (out []string) {
	check := func(set map[string]bool, name, what string) {
		if !set[name] {
			out = append(out, what)
		}
	}
	for _, block := range goBlock.FindAllStringSubmatch(text, -1) {
		for _, m := range qualified.FindAllStringSubmatch(block[1], -1) {
			check(n.api[m[1]], m[2], m[0])
		}
	}
	for _, span := range codeSpan.FindAllStringSubmatch(anyBlock.ReplaceAllString(text, ""), -1) {
		s := span[1]
		if tests := aTest.FindAllStringSubmatch(s, -1); testName.MatchString(s[strings.LastIndex(s, ".")+1:]) && len(tests) > 0 {
			for _, m := range tests {
				check(n.tests[m[1]], m[2], m[0])
			}
			continue
		}
		for _, m := range qualified.FindAllStringSubmatch(s, -1) {
			if m[3] != "" {
				m[2] += "." + m[3]
			}
			check(n.api[m[1]], m[2], m[0])
		}
		for _, m := range ofTask.FindAllStringSubmatch(s, -1) {
			check(n.api["outbox"], "Task."+m[1], m[0])
		}
		if m := oneName.FindStringSubmatch(s); m != nil && !n.has(m[1]+m[2]) && (n.has(m[1]) || m[2] == "" || !n.has(m[2][1:])) { // a variable's method is fine
			out = append(out, s)
		}
	}
	return out
}

// has knows also members without their type.
func (n names) has(name string) bool {
	if n.api[""][name] {
		return true
	}
	for known := range n.api[""] {
		if strings.HasSuffix(known, "."+name) {
			return true
		}
	}
	return false
}

// rowFaults says what a row of docs/features.md lacks: a capability, its API, an example with an output, and a test.
func (n names) rowFaults(row string) (out []string) {
	cells := strings.Split(strings.Trim(row, "| "), "|")
	if len(cells) != 4 {
		return []string{fmt.Sprintf("%d cells, want 4", len(cells))}
	}
	if strings.TrimSpace(cells[1]) == "" {
		out = append(out, "no API")
	}
	examples, tests := 0, 0
	for _, m := range aTest.FindAllStringSubmatch(cells[2], -1) {
		examples++
		if !n.outputs[m[1]][m[2]] {
			out = append(out, m[0]+" is no example with an output")
		}
	}
	for _, m := range aTest.FindAllStringSubmatch(cells[3], -1) {
		if !strings.HasPrefix(m[2], "Example") {
			tests++
		}
	}
	if examples == 0 || tests == 0 {
		out = append(out, fmt.Sprintf("%d examples and %d tests, want some of each", examples, tests))
	}
	for _, m := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(cells[3], -1) {
		if !n.strings[m[1]] {
			out = append(out, "no subtest "+m[0])
		}
	}
	return out
}

func TestTheDocumentationNamesWhatExists(t *testing.T) {
	t.Parallel()
	n := readNames(t)
	for _, name := range pages(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range n.unknown(string(text)) {
			t.Errorf("%s: there is no %s", name, u)
		}
	}
	// The check itself finds what it should, and nothing else.
	text := "`TestNone` `relay.TestInTx…` `ExampleNone` `handlers.ExampleStats` `outbox.None` `relay.Config.None` `Task.None(d)` `task.None` `None` `OnNone(1)` ```go\nrelay.None()\n```" +
		"`TestEnqueue` `relay.ExampleFair` `outbox.Enqueue(ctx, tx, …)` `relay.Config.Order: relay.Random` `Task.Complete` `task.ID` `RunAt` `After(d)` `outbox.task` `GRANT SELECT`"
	if found := n.unknown(text); len(found) != 11 {
		t.Errorf("the check found %q, want the first 11 names", found)
	}
}

func TestEachRowOfTheTableOfFeaturesIsFilledIn(t *testing.T) {
	t.Parallel()
	n := readNames(t)
	text, err := os.ReadFile("docs/features.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, line := range strings.Split(string(text), "\n") {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| capability |") {
			continue
		}
		rows++
		for _, fault := range n.rowFaults(line) {
			t.Errorf("%s\n%s", fault, line)
		}
	}
	if rows < 40 {
		t.Errorf("%d rows, want 40 at least", rows)
	}
	for row, want := range map[string]int{
		"| a | `outbox.Stats` | `ExampleStats` | `TestEnqueue` |":            0,
		"| a | | `ExampleStats` | `TestEnqueue` |":                           1,
		"| a | b | | `TestEnqueue` |":                                        1,
		"| a | b | `ExampleNone` | `TestEnqueue` |":                          1,
		"| a | b | `ExampleStats` | `ExampleStats` |":                        1,
		"| a | b | `ExampleStats` | `TestEnqueue` \"a subtest " + "that\" |": 1,
	} {
		if found := n.rowFaults(row); len(found) != want {
			t.Errorf("%s: the check found %q, want %d", row, found, want)
		}
	}
}

// The README's figures are those of the report, line by line.
func TestTheReadmeQuotesTheReport(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	report, err := os.ReadFile("docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	_, quotes, found := strings.Cut(string(readme), "\n## How fast it is\n")
	if !found {
		t.Fatal("the README has no section \"How fast it is\"")
	}
	quotes, _, _ = strings.Cut(quotes, "\n## ")
	inReport := map[string]bool{}
	for line := range strings.Lines(string(report)) {
		inReport[strings.TrimSpace(line)] = true
	}
	lines := regexp.MustCompile(`(?m)^\|.*$`).FindAllString(quotes, -1)
	if len(lines) < 3 {
		t.Errorf("the README quotes %d lines of a table", len(lines))
	}
	for _, line := range lines {
		if !inReport[line] {
			t.Errorf("docs/benchmarks.md does not have the README's line %q", line)
		}
	}
	if prose := regexp.MustCompile(`(?m)^\|.*\n`).ReplaceAllString(quotes, ""); regexp.MustCompile(`[0-9.,]+(x|/s)\b`).MatchString(prose) {
		t.Error("the README gives figures outside of the lines that it quotes")
	}
}
