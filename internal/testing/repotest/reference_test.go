package repotest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestTheReferenceIsAsTheCodeIs(t *testing.T) {
	t.Parallel()
	if text, err := exec.CommandContext(t.Context(), "go", "run", ".ci/reference.go").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

// promised are names that a reader may search for, by their sort.
func promised(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	add := func(sort, name string) { out[sort] = append(out[sort], name) }
	packages := map[string]string{} // names, by folder
	n := allNames(t)
	for _, m := range regexp.MustCompile(`(?m)^([\w/]+): (.*)$`).FindAllStringSubmatch(read(t, ".ci/api.txt"), -1) {
		folder, line := m[1], m[2]
		if packages[folder] == "" {
			packages[folder] = packageName(t, folder)
		}
		of := packages[folder] + "."
		if m := regexp.MustCompile(`^var (Err\w+)`).FindStringSubmatch(line); m != nil {
			add("error", of+m[1])
		}
		if m := regexp.MustCompile(`^func (?:\(\w+ \*?(\w+)\) )?(\w+)\(.*\) (?:\w+\.)?\w*Option(?: \(exp.*)?$`).
			FindStringSubmatch(line); m != nil {
			add("option", of+strings.TrimPrefix(m[1]+"."+m[2], "."))
		}
		if m := regexp.MustCompile(`^type (Config), field (\w+)`).FindStringSubmatch(line); m != nil {
			add("field", of+m[1]+"."+m[2])
		}
	}
	for _, name := range append(out["error"], out["option"]...) {
		if !n.api[name] {
			t.Errorf("the code has no %s", name)
		}
	}
	for line := range strings.Lines(read(t, "cmd/outbox/testdata/flags.txt")) {
		command, flags, _ := strings.Cut(strings.TrimSpace(line), " -")
		if command != "all" {
			add("command", "outbox "+command)
		}
		for flag := range strings.SplitSeq(flags, " -") {
			if name, _, found := strings.Cut(flag, " "); found {
				add("flag", "-"+name)
			}
		}
	}
	for _, name := range programFlags(t) {
		add("flag", "-"+name)
	}
	for file, metric := range map[string]string{
		"telemetry/prom/metrics.go": `"(outbox_[a-z_]+)"`,
		"telemetry/otel/metrics.go": `"((?:outbox|messaging\.(?:client|process))\.[a-z_.]+)", (?:"|metric)`,
	} {
		for _, m := range regexp.MustCompile(metric).FindAllStringSubmatch(read(t, file), -1) {
			add("metric", m[1])
		}
	}
	files, _ := filepath.Glob("schema/*.sql")
	table := regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?(?:TABLE|VIEW) (?:IF NOT EXISTS )?(outbox\.\w+)`)
	for _, file := range files {
		for _, m := range table.FindAllStringSubmatch(read(t, file), -1) {
			add("table", m[1])
		}
	}
	return out
}

func packageName(t *testing.T, folder string) string {
	t.Helper()
	if folder == "outbox" {
		folder = "."
	}
	files, _ := filepath.Glob(folder + "/*.go")
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.PackageClauseOnly)
			if err != nil {
				t.Fatal(err)
			}
			return f.Name.Name
		}
	}
	t.Fatalf("no package in %s", folder)
	return ""
}

// flagFunc are the functions of package flag that define a flag.
var flagFunc = regexp.MustCompile(`^(String|Bool|Int|Int64|Uint|Uint64|Float64|Duration|Text|Func|BoolFunc)(Var)?$`)

// programFlags are the flags that programs of the repository define by package flag.
func programFlags(t *testing.T) (out []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil || file.Name.Name != "main" {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok {
				return true
			}
			f, _ := call.Fun.(*ast.SelectorExpr)
			if f == nil || !flagFunc.MatchString(f.Sel.Name) || !slices.Contains([]string{"flag", "f"}, receiver(f.X)) {
				return true
			}
			for _, a := range call.Args[:min(2, len(call.Args))] { // the name is first, or behind a pointer
				if l, ok := a.(*ast.BasicLit); ok && l.Kind == token.STRING {
					name, _ := strconv.Unquote(l.Value)
					out = append(out, name)
					break
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// missing are the names that a text does not have as a whole word.
func missing(text string, names []string) (out []string) {
	for _, name := range names {
		if !regexp.MustCompile(`(^|[^\w.-])` + regexp.QuoteMeta(name) + `($|[^\w-])`).MatchString(text) {
			out = append(out, name)
		}
	}
	return out
}

func TestEachNameIsFoundInTheDocumentation(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for _, name := range pages(t) {
		if strings.HasPrefix(name, "docs/") {
			all.WriteString(read(t, name))
		}
	}
	least := map[string]int{
		"error": 39, "option": 63, "field": 60, "flag": 70, "metric": 30, "table": 20, "command": 40,
	}
	names := promised(t)
	for sort := range names {
		slices.Sort(names[sort])
		names[sort] = slices.Compact(names[sort])
	}
	for sort, n := range least {
		if len(names[sort]) < n {
			t.Errorf("%d names of the sort %s, want %d at least: %q", len(names[sort]), sort, n, names[sort])
		}
		for _, name := range missing(all.String(), names[sort]) {
			t.Errorf("docs/ does not have the %s %s", sort, name)
		}
	}
	if got := missing("`relay.ErrCopy`, -after, `outbox_tasks{type}`", []string{
		"relay.ErrCopy", "-after", "outbox_tasks", "relay.Err", "-aft", "ErrCopy", "-x",
	}); len(got) != 4 {
		t.Errorf("the check misses %q, want the last 4", got)
	}
}
