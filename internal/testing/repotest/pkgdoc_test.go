package repotest

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documented is a name that pkg.go.dev shows, with its comment.
type documented struct{ name, comment string }

// documentedNames are the exported names of the packages that apps import, and of the command: each
// package by its name, "pkg.Func", "pkg.Type.Method", and types with their fields. calls are the
// functions and methods among them, examples those that an example is named for.
func documentedNames(t *testing.T) (all []documented, calls []string, examples map[string]bool) {
	t.Helper()
	examples = map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && slices.Contains(
			[]string{"internal", "examples", "bench", "browsertest", "testdata", ".ci"},
			d.Name()) {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		pkg := strings.TrimSuffix(file.Name.Name, "_test")
		if strings.HasSuffix(path, "_test.go") {
			for _, e := range doc.Examples(file) {
				examples[pkg+"."+exampleOf(e.Name)] = true
			}
			return nil
		}
		all = append(all, documented{pkg, file.Doc.Text()})
		for _, d := range file.Decls {
			found := declared(pkg, d)
			all = append(all, found...)
			if _, ok := d.(*ast.FuncDecl); ok && len(found) > 0 {
				calls = append(calls, found[0].name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all, calls, examples
}

// exampleOf is the name that an example is for: a suffix that begins in lower case is a variant.
func exampleOf(name string) string {
	parts := strings.Split(name, "_")
	if last := parts[len(parts)-1]; len(parts) > 1 && last != "" && strings.ToLower(last[:1]) == last[:1] {
		parts = parts[:len(parts)-1]
	}
	return strings.Join(parts, ".")
}

// declared are the exported names of a declaration, each with all of its comments.
func declared(pkg string, d ast.Decl) (out []documented) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			name = receiver(d.Recv.List[0].Type) + "." + name
		}
		if ast.IsExported(name) && d.Name.IsExported() {
			out = append(out, documented{pkg + "." + name, d.Doc.Text()})
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			name, comment := "", d.Doc.Text()
			switch s := s.(type) {
			case *ast.TypeSpec:
				name = s.Name.Name
			case *ast.ValueSpec:
				name = s.Names[0].Name
			}
			ast.Inspect(s, func(n ast.Node) bool {
				if c, ok := n.(*ast.CommentGroup); ok {
					comment += c.Text()
				}
				return true
			})
			if ast.IsExported(name) {
				out = append(out, documented{pkg + "." + name, comment})
			}
		}
	}
	return out
}

var relativePage = regexp.MustCompile(`(?:^|[^/\w])docs/[\w/-]+`)

// pkg.go.dev shows no file of docs: a comment names a page by its URL, and the page exists.
func TestDocCommentsNamePagesByTheirURL(t *testing.T) {
	t.Parallel()
	const main = "https://github.com/txoutbox/outbox/blob/main/"
	page := regexp.MustCompile(regexp.QuoteMeta(main) + `[\w/.#-]*\w`)
	all, _, _ := documentedNames(t)
	urls := 0
	for _, d := range all {
		if found := relativePage.FindString(d.comment); found != "" {
			t.Errorf("the comment of %s names %s: begin it with %s", d.name, strings.TrimSpace(found), main)
		}
		for _, url := range page.FindAllString(d.comment, -1) {
			urls++
			if dead := deadLinks("README.md", "[a]("+strings.TrimPrefix(url, main)+")"); len(dead) > 0 {
				t.Errorf("the comment of %s names %s, which leads nowhere", d.name, url)
			}
		}
	}
	if len(all) < 300 || urls < 15 {
		t.Errorf("%d names and %d URLs were found: the check does not see the comments", len(all), urls)
	}
}

// noExample are calls without an example of their own, with the reason.
var noExample = map[string]string{
	"dashboard.Handler.ServeHTTP": "a mux calls it",

	"handlers.BatchResult.Error":  "it is an error: fmt and the relay call it",
	"handlers.BatchResult.Unwrap": "errors.Is and errors.As call it",
	"outboxtest.Result.String":    "fmt calls it, as in ExampleDrain",
	"outboxtest.Run.String":       "fmt calls it",

	"outbox.TaskType.PayloadType": "outboxtest.Golden calls it",

	"outboxamqp.Publisher.Publish":      "package forward calls it",
	"outboxkafka.Publisher.Publish":     "package forward calls it",
	"outboxnats.Publisher.Publish":      "package forward calls it",
	"outboxwatermill.Publisher.Publish": "package forward calls it",
	"outboxwebhook.Publisher.Publish":   "package forward calls it",

	"outboxprom.Collector.Collect":  "a registry of Prometheus calls it",
	"outboxprom.Collector.Describe": "a registry of Prometheus calls it",
}

func TestEachCallOfAnAppHasAnExample(t *testing.T) {
	t.Parallel()
	_, calls, examples := documentedNames(t)
	missing := map[string]bool{}
	for _, name := range calls {
		if !examples[name] {
			missing[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		if noExample[name] == "" {
			t.Errorf("%s has no example: write one of its name", name)
		}
	}
	for name := range noExample {
		if !missing[name] {
			t.Errorf("%s has an example, or is gone: it is no exception any more", name)
		}
	}
}

// sameAs finds a sentence that says no more than that a call is another one.
var sameAs = regexp.MustCompile(`^\w+ is (?:\[?[a-z]*\.?[A-Z]\w*(?:\.\w+)?\]?) (?:of|in|on|within|for|that)\b`)

// Lists and editors show the first sentence alone: it says what the call does, in words of its own.
func TestTheFirstSentenceOfACallIsEnoughByItself(t *testing.T) {
	t.Parallel()
	all, calls, _ := documentedNames(t)
	for _, d := range all {
		if !slices.Contains(calls, d.name) {
			continue
		}
		first := new(doc.Package).Synopsis(d.comment)
		name := d.name[strings.LastIndex(d.name, ".")+1:]
		switch {
		case !strings.HasPrefix(strings.Replace(first, ",", "", 1), name+" "):
			t.Errorf("the comment of %s begins with %q, want its name", d.name, first)
		case len(strings.Fields(first)) < 3, sameAs.MatchString(first):
			t.Errorf("the first sentence of %s says too little: %q", d.name, first)
		}
	}
}

var workModule = regexp.MustCompile(`(?m)^\t\./(\S+)$`)

// A module has a page of its own on pkg.go.dev, which shows its README.
func TestEachModuleHasAREADME(t *testing.T) {
	t.Parallel()
	modules := workModule.FindAllStringSubmatch(read(t, "go.work"), -1)
	for _, m := range modules {
		text, err := os.ReadFile(filepath.Join(m[1], "README.md"))
		if err != nil {
			t.Error(err)
			continue
		}
		if lines := strings.Count(string(text), "\n"); lines < 10 || lines > 30 {
			t.Errorf("the README of %s has %d lines, want 10 to 30", m[1], lines)
		}
		optional := regexp.MustCompile(`^(adapter|publish|telemetry)/`).MatchString(m[1])
		if optional && (!strings.Contains(string(text), "\ngo get github.com/txoutbox/outbox/"+m[1]+"\n") ||
			!strings.Contains(string(text), "```go\n") || !strings.Contains(string(text), "](../../docs/guide/")) {
			t.Errorf("the README of %s lacks its go get, a program or a link to its guide", m[1])
		}
	}
	if len(modules) < 10 {
		t.Errorf("go.work has the modules %q", modules)
	}
}

// Each picture of docs/screenshots is on a page, which asks for no other, and has both themes.
func TestPicturesAreThereAndShownInBothThemes(t *testing.T) {
	t.Parallel()
	shown := map[string]bool{}
	for _, name := range pages(t) {
		for _, m := range regexp.MustCompile(`src(?:set)?="([^"]+)"`).FindAllStringSubmatch(read(t, name), -1) {
			shown[filepath.ToSlash(filepath.Join(filepath.Dir(name), m[1]))] = true
		}
	}
	files, err := filepath.Glob("docs/screenshots/*")
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, file := range files {
		file = filepath.ToSlash(file)
		there[file] = true
		if !shown[file] {
			t.Errorf("no page shows %s", file)
		}
	}
	for file := range shown {
		dark := strings.Replace(file, "-light.", "-dark.", 1)
		if !there[file] || !there[dark] {
			t.Errorf("a page shows %s: it, or its picture in the dark, is missing", file)
		}
	}
	if len(files) < 8 {
		t.Errorf("the pictures are %q", files)
	}
}
