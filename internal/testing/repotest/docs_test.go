package repotest

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
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

var (
	testName  = regexp.MustCompile(`^(Test|Example|Benchmark|Fuzz)([A-Z_]|$)`)
	codeSpan  = regexp.MustCompile("`([^`\n]+)`")
	anyBlock  = regexp.MustCompile("(?s)```.*?```")
	aTest     = regexp.MustCompile(`(?:\b([a-z]+)\.)?\b((?:Test|Example|Benchmark|Fuzz)(?:[A-Z_]\w*)?)\b`)
	qualified = regexp.MustCompile(`\b([a-z]+)\.([A-Z]\w*)(?:\.([A-Z]\w*))?`)
	ofTask    = regexp.MustCompile(`\btask\.([A-Z]\w*)`)
	oneName   = regexp.MustCompile(`^([A-Z]\w*[a-z]\w*)(\.[A-Z]\w*)?(\(.*\))?$`)
)

// unknown are the names in a text of the documentation that the repository does not have.
func (n names) unknown(text string) (out []string) {
	check := func(found bool, what string) {
		if !found {
			out = append(out, what)
		}
	}
	for _, span := range codeSpan.FindAllStringSubmatch(anyBlock.ReplaceAllString(text, ""), -1) {
		s := span[1]
		if tests := aTest.FindAllStringSubmatch(s, -1); testName.MatchString(s[strings.LastIndex(s, ".")+1:]) &&
			len(tests) > 0 {
			for _, m := range tests {
				_, found := n.tests[m[1]+"."+m[2]]
				check(found, m[0])
			}
			continue
		}
		for _, m := range qualified.FindAllStringSubmatch(s, -1) {
			if m[3] != "" {
				m[2] += "." + m[3]
			}
			check(!n.packages[m[1]] || n.api[m[1]+"."+m[2]], m[0])
		}
		for _, m := range ofTask.FindAllStringSubmatch(s, -1) {
			check(n.api["outbox.Task."+m[1]], m[0])
		}
		if m := oneName.FindStringSubmatch(s); m != nil && !n.has(m[1]+m[2]) &&
			(n.has(m[1]) || m[2] == "" || !n.has(m[2][1:])) { // a variable's method is fine
			out = append(out, s)
		}
	}
	return out
}

// has knows names without their package, and members without their type.
func (n names) has(name string) bool {
	for known := range n.api {
		if strings.HasSuffix(known, "."+name) {
			return true
		}
	}
	return false
}

// rowFaults says what a row of docs/coverage.md lacks: a capability, its API, an example with an
// output, and a test.
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
		if !n.outputs[m[1]+"."+m[2]] {
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
	n := allNames(t)
	for _, name := range pages(t) {
		for _, u := range n.unknown(read(t, name)) {
			t.Errorf("%s: there is no %s", name, u)
		}
	}
}

func TestEachRowOfTheCoverageIsFilledIn(t *testing.T) {
	t.Parallel()
	n := allNames(t)
	rows := 0
	for line := range strings.Lines(read(t, "docs/coverage.md")) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") ||
			strings.HasPrefix(line, "| capability |") {
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
}

// Each invariant of docs/design.md names tests, whose comments cite it.
func TestEachInvariantIsCitedByItsTests(t *testing.T) {
	t.Parallel()
	n := allNames(t)
	rows := regexp.MustCompile(`(?m)^\| (I\d+) \|.*\| (.*) \|$`).FindAllStringSubmatch(read(t, "docs/design.md"), -1)
	for i, row := range rows {
		if want := fmt.Sprintf("I%d", i+1); row[1] != want {
			t.Fatalf("row %d of the invariants is %s, want %s", i+1, row[1], want)
		}
		cites := regexp.MustCompile(`\b` + row[1] + `\b`)
		tests := aTest.FindAllStringSubmatch(row[2], -1)
		if len(tests) == 0 {
			t.Errorf("%s names no test", row[1])
		}
		for _, m := range tests {
			if !cites.MatchString(n.tests[m[1]+"."+m[2]]) {
				t.Errorf("the comment of %s does not cite %s", m[0], row[1])
			}
		}
	}
	if len(rows) != 14 {
		t.Errorf("docs/design.md has %d invariants, want 14", len(rows))
	}
}

var (
	link       = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notInSlugs = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// deadLinks are the links of a text in the given file that lead to no file or no heading.
func deadLinks(name, text string) (out []string) {
	text = codeSpan.ReplaceAllString(anyBlock.ReplaceAllString(text, ""), "")
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		path, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(path, "://") {
			continue
		}
		target := name
		if path != "" {
			target = filepath.Join(filepath.Dir(name), path)
		}
		info, err := os.Stat(target)
		if err != nil {
			out = append(out, m[1])
			continue
		}
		if anchor == "" || info.IsDir() {
			continue
		}
		to, _ := os.ReadFile(target)
		found := false
		for _, h := range heading.FindAllStringSubmatch(string(to), -1) {
			slug := strings.ReplaceAll(notInSlugs.ReplaceAllString(strings.ToLower(h[1]), ""), " ",
				"-") // as GitHub makes them
			found = found || slug == anchor
		}
		if !found {
			out = append(out, m[1])
		}
	}
	return out
}

// pages are all of the documentation, with the README of each module.
func pages(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "[^d]*/README.md", "*/*/README.md",
		"internal/*/*/README.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, found...)
	}
	if len(out) < 15 {
		t.Fatalf("the documentation has %d pages: %q", len(out), out)
	}
	return out
}

func TestLinksOfTheDocumentationLeadSomewhere(t *testing.T) {
	t.Parallel()
	index := read(t, "docs/README.md")
	for _, name := range pages(t) {
		for _, l := range deadLinks(name, read(t, name)) {
			t.Errorf("%s: the link %s leads nowhere", name, l)
		}
		inDocs, is := strings.CutPrefix(name, "docs/")
		if is && strings.Contains(inDocs, "/") && !strings.Contains(index, inDocs) {
			t.Errorf("docs/README.md has no link to %s", name)
		}
	}
	if found := deadLinks("docs/design.md", "[a](none.md) [b](coverage.md#none) [c](coverage.md#fetchq) "+
		"[d](../README.md) [e](https://example.com/none)"); len(found) != 2 {
		t.Errorf("the check found %q, want the first 2", found)
	}
}

var figure = regexp.MustCompile(`[0-9][0-9.,]*(x|/s| tasks/s)\b`)

// The README is the first screen: a reader decides by it. Rates and ratios are in the report, which
// a program writes.
func TestTheReadmeIsShortAndGivesNoRates(t *testing.T) {
	t.Parallel()
	readme := read(t, "README.md")
	if n := len(strings.Fields(readme)); n > 900 {
		t.Errorf("the README has %d words, want 900 at most", n)
	}
	if found := figure.FindAllString(readme, -1); found != nil {
		t.Errorf("the README gives %q, which belong in docs/benchmarks.md", found)
	}
	if found := figure.FindAllString("2.71x, 69,925 tasks/s, 5/s, 4xx, in 15 s", -1); len(found) != 3 {
		t.Errorf("the check found %q, want the first three", found)
	}
}

// A program that the documentation shows first is a test of package outbox, line by line.
func TestThePagesShowProgramsThatRun(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ page, begin, file string }{
		{"README.md", "```go\n", "example_test.go"},
		{"docs/guide/testing.md", "```go\nfunc TestSignUp", "example_testing_test.go"},
		{"docs/coming-from/goroutines.md", "```go\n// From is", "relay/example_guides_test.go"},
		{"docs/coming-from/goroutines.md", "```go\ntype (\n\tNewsletter", "relay/example_guides_test.go"},
		{"docs/guide/endpoints.md", "```go\ntype ShopCall", "relay/example_guides_test.go"},
		{"docs/guide/steps.md", "```go\ntype Order", "relay/example_guides_test.go"},
		{"docs/guide/steps.md", "```go\ntype PrintPage", "relay/example_guides_test.go"},
	} {
		_, block, _ := strings.Cut(read(t, c.page), c.begin)
		block, _, found := strings.Cut(block, "```")
		if !found || !strings.Contains(read(t, c.file), block) {
			t.Errorf("the block %s of %s is not in %s", c.begin, c.page, c.file)
		}
	}
}

// names are what the documentation can name. The keys are "relay.Config.Order" and, for what is
// named without its package, ".Config.Order".
type names struct {
	packages map[string]bool
	api      map[string]bool
	tests    map[string]string // their comments; of Go's forms: Test…, Benchmark…, Fuzz…, Example…
	outputs  map[string]bool   // examples whose output is checked
	strings  map[string]bool   // in tests: the names of subtests are among them
}

var readNames = sync.OnceValues(func() (names, error) {
	n := names{map[string]bool{}, map[string]bool{}, map[string]string{}, map[string]bool{}, map[string]bool{}}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" ||
			strings.Contains(filepath.ToSlash(path), "/testdata/") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		pkg := strings.TrimSuffix(file.Name.Name, "_test")
		if strings.HasSuffix(path, "_test.go") {
			n.addTests(pkg, file)
		} else if !strings.Contains(path, "internal") && pkg != "main" {
			n.packages[pkg] = n.packages[pkg] || !strings.HasPrefix(path, "bench") // which has names of other queues
			n.addAPI(pkg, file)
		}
		return nil
	})
	return n, err
})

func allNames(t *testing.T) names {
	t.Helper()
	n, err := readNames()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (n names) addTests(pkg string, file *ast.File) {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && testName.MatchString(f.Name.Name) {
			n.tests[pkg+"."+f.Name.Name] = f.Doc.Text()
			n.tests["."+f.Name.Name] += f.Doc.Text()
		}
	}
	for _, e := range doc.Examples(file) {
		n.outputs[pkg+".Example"+e.Name] = e.Output != ""
		n.outputs[".Example"+e.Name] = e.Output != "" || n.outputs[".Example"+e.Name]
	}
	ast.Inspect(file, func(node ast.Node) bool {
		if l, ok := node.(*ast.BasicLit); ok && l.Kind == token.STRING {
			s, _ := strconv.Unquote(l.Value)
			n.strings[s] = true
		}
		return true
	})
}

// addAPI adds functions, methods, types with their fields and methods, constants and variables.
func (n names) addAPI(pkg string, file *ast.File) {
	add := func(name string) { n.api[pkg+"."+name], n.api["."+name] = true, true }
	prefix := ""
	ast.Inspect(file, func(node ast.Node) bool {
		switch d := node.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = receiver(d.Recv.List[0].Type) + "." + name
			}
			add(name)
			return false
		case *ast.TypeSpec:
			add(d.Name.Name)
			prefix = d.Name.Name + "."
		case *ast.Field:
			for _, name := range d.Names {
				add(prefix + name.Name)
			}
			return false
		case *ast.ValueSpec:
			for _, name := range d.Names {
				add(name.Name)
			}
		}
		return true
	})
}

// receiver is the name of a receiver's type.
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

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w*)\(`)

// CI fails where an alternative of a suite's pattern matches no test of its packages.
func TestEachPatternOfCIMatchesATest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file, variable string
		dirs           []string
	}{
		{".ci/run", "clients", []string{".", "admin", "relay"}},
		{".ci/run", "versions", []string{".", "schema", "internal/testing/rights", "admin", "doctor", "relay"}},
		{".ci/full", "timed", []string{"relay", "internal/testing/crashes"}},
	} {
		var tests []string
		for _, dir := range c.dirs {
			files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				for _, m := range testFunc.FindAllStringSubmatch(read(t, file), -1) {
					tests = append(tests, m[1])
				}
			}
		}
		patterns := regexp.MustCompile(`(?m)^`+c.variable+`\+?='([^']*)'`).FindAllStringSubmatch(read(t, c.file), -1)
		if len(patterns) == 0 {
			t.Errorf("%s has no %s", c.file, c.variable)
		}
		for _, p := range patterns {
			for pattern := range strings.SplitSeq(strings.Trim(p[1], "|"), "|") {
				if !slices.ContainsFunc(tests, regexp.MustCompile(pattern).MatchString) {
					t.Errorf("%s: no test of %v matches %s of %s", c.file, c.dirs, pattern, c.variable)
				}
			}
		}
	}
}

// placed is a name beside its file, as in `runner.Run` (internal/txrun/runner.go).
var placed = regexp.MustCompile("`([\\w.]+)`\\s+\\(([\\w/.]+\\.(?:go|sql))\\)")

// misplaced are the names of a text that the file beside them does not declare.
func misplaced(t *testing.T, text string) (out []string) {
	for _, m := range placed.FindAllStringSubmatch(text, -1) {
		name := m[1][strings.LastIndex(m[1], ".")+1:]
		declared := regexp.MustCompile(`(?m)^(func|type|var|const)\s+(\([^)]*\)\s*)?` + name + `\b` +
			`|FUNCTION \S*\b` + name + `\b|\b` + name + `\s+=`)
		if code, err := os.ReadFile(m[2]); err != nil || !declared.Match(code) {
			out = append(out, m[1]+" ("+m[2]+")")
		}
	}
	return out
}

func TestTheDocumentationNamesFilesOfFunctionsAsTheyAre(t *testing.T) {
	t.Parallel()
	for _, name := range pages(t) {
		if wrong := misplaced(t, read(t, name)); wrong != nil {
			t.Errorf("%s: not declared there: %s", name, strings.Join(wrong, ", "))
		}
	}
	if wrong := misplaced(t, "`Enqueue` (enqueue.go) and `nobody` (enqueue.go)"); len(wrong) == 0 {
		t.Error("a wrong name passes")
	}
}

// Reasons of dead letters are constants in task.go. The CHECK, the filter, the words for operators and
// the documentation have each of them.
func TestEachReasonOfADeadLetterStandsWhereItIsRead(t *testing.T) {
	t.Parallel()
	reasons := regexp.MustCompile(`(Reason\w+) Reason = "(\w+)"`).FindAllStringSubmatch(read(t, "task.go"), -1)
	if len(reasons) < 4 {
		t.Fatalf("task.go has the reasons %q", reasons)
	}
	migrations, _ := filepath.Glob("schema/0*.sql")
	check := "" // as the latest migration that changes it has it
	for _, name := range migrations {
		if _, later, found := strings.Cut(read(t, name), "dead_task_reason_check CHECK ("); found {
			check, _, _ = strings.Cut(later, "))")
		}
	}
	for _, m := range reasons {
		for text, want := range map[string]string{
			check:                                    "'" + m[2] + "'",
			read(t, "schema/relations.sql"):          m[2] + ": ",
			read(t, "docs/guide/retries.md"):         "| `" + m[2] + "` |",
			read(t, "admin/filter.go"):               "outbox." + m[1],
			read(t, "internal/taskview/taskview.go"): "outbox." + m[1] + ":",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is missing in the text that begins with %.60q", m[1], want, text)
			}
		}
	}
}

// A publisher is found by the documentation alone: its row, how it is opened, and what its errors mean.
func TestEachPublisherIsInTheDocumentation(t *testing.T) {
	t.Parallel()
	modules, _ := filepath.Glob("publish/*/go.mod")
	if len(modules) < 5 {
		t.Fatalf("publish/ has the modules %q", modules)
	}
	for _, module := range modules {
		dir := filepath.ToSlash(filepath.Dir(module))
		tests := ""
		files, _ := filepath.Glob(dir + "/*_test.go")
		for _, file := range files {
			tests += read(t, file)
		}
		for want, text := range map[string]string{"| `" + dir + "` |": read(t, "docs/guide/delivering.md"),
			" outbox" + filepath.Base(dir) + ".": read(t, "docs/guide/delivering.md"),
			"faultmap.Check(":                    tests} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is missing in docs/guide/delivering.md, or in its tests", dir, want)
			}
		}
	}
}
