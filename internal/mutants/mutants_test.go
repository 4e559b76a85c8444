package main

import (
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func parse(t *testing.T, text string) *goFile {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "a.go", text, 0)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	p := &source{fset: fset, info: &types.Info{
		Uses: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{},
	}}
	p.types, err = (&types.Config{Importer: importer.Default()}).Check("a", fset, []*ast.File{file}, p.info)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	f := &goFile{source: p, code: &code{seen: map[string]int{}}, path: "a.go", text: text}
	f.find(file)
	return f
}

const goText = `package a

func f(a, b int, on func() bool) (n int) {
	if a < b && on() { // both
		n = a
		a = n + 1
		return min(a, b)
	}
	for i := range b {
		switch {
		case i == a:
			n++
			g()
		}
	}
	defer g()
	return n
}

func g() {}
`

// Each mutant compiles.
func TestGoCodeHasMutantsOfEachKind(t *testing.T) {
	t.Parallel()
	var got []string
	f := parse(t, goText)
	for _, m := range f.code.mutants {
		parse(t, m.changed)
		got = append(got, m.kind+": "+m.text)
	}
	for _, want := range []string{
		"negate: a < b && on()", "drop operand: [a < b && ] on()", "drop operand: a < b [ && on()]", "bound: a < b => <=",
		"drop: n = a", "drop: a = n + 1", "swap: n = a <> a = n + 1", "bound: n [+ 1]", "drop: return min(a, b)",
		"bound: min(a, b) => max",
		"negate: i == a", "drop: n++", "swap: n++ <> g()", "drop: g()", "drop: defer g()",
	} {
		if i := slices.Index(got, want); i < 0 {
			t.Errorf("there is no mutant %q", want)
		} else {
			got = slices.Delete(got, i, i+1)
		}
	}
	if len(got) > 0 {
		t.Errorf("there are other mutants: %q", got)
	}
}

func TestSQLHasMutantsOfEachKind(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"SELECT a FROM t WHERE a BETWEEN 1 AND 2 AND b = $1 ORDER BY a, b LIMIT $2 FOR UPDATE OF t SKIP LOCKED": {
			"drop clause: SELECT a FROM t WHERE b = $1 ORDER BY a, b LIMIT $2 FOR UPDATE OF t SKIP LOCKED",
			"drop clause: SELECT a FROM t WHERE a BETWEEN 1 AND 2 AND (b = $1 OR true) ORDER BY a, b LIMIT $2 " +
				"FOR UPDATE OF t SKIP LOCKED",
			"order: SELECT a FROM t WHERE a BETWEEN 1 AND 2 AND b = $1 ORDER BY b, a LIMIT $2 FOR UPDATE OF t SKIP LOCKED",
			"drop clause: SELECT a FROM t WHERE a BETWEEN 1 AND 2 AND b = $1 ORDER BY a, b FOR UPDATE OF t SKIP LOCKED",
			"drop clause: SELECT a FROM t WHERE a BETWEEN 1 AND 2 AND b = $1 ORDER BY a, b LIMIT $2",
			"drop clause: SELECT a FROM t WHERE a BETWEEN 1 AND 2 AND b = $1 ORDER BY a, b LIMIT $2 FOR UPDATE OF t",
		},
		"SELECT n + 1 FROM t WHERE (a < b OR c IS NOT NULL) AND NOT EXISTS (SELECT FROM u) ORDER BY c DESC": {
			"bound: SELECT n FROM t WHERE (a < b OR c IS NOT NULL) AND NOT EXISTS (SELECT FROM u) ORDER BY c DESC",
			"bound: SELECT n + 1 FROM t WHERE (a <= b OR c IS NOT NULL) AND NOT EXISTS (SELECT FROM u) ORDER BY c DESC",
			"drop clause: SELECT n + 1 FROM t WHERE (a < b ) AND NOT EXISTS (SELECT FROM u) ORDER BY c DESC",
			"negate: SELECT n + 1 FROM t WHERE (a < b OR c IS NULL) AND NOT EXISTS (SELECT FROM u) ORDER BY c DESC",
			"drop clause: SELECT n + 1 FROM t WHERE NOT EXISTS (SELECT FROM u) ORDER BY c DESC",
			"drop clause: SELECT n + 1 FROM t WHERE (a < b OR c IS NOT NULL) ORDER BY c DESC",
			"negate: SELECT n + 1 FROM t WHERE (a < b OR c IS NOT NULL) AND EXISTS (SELECT FROM u) ORDER BY c DESC",
			"order: SELECT n + 1 FROM t WHERE (a < b OR c IS NOT NULL) AND NOT EXISTS (SELECT FROM u) ORDER BY c ASC",
		},
		"DECLARE n int; BEGIN IF n = 1 THEN -- so\n n := 2; PERFORM f(n); RETURN NULL; END IF; RETURN NEW; END": {
			"negate: DECLARE n int; BEGIN IF NOT (n = 1) THEN -- so n := 2; PERFORM f(n); RETURN NULL; END IF; RETURN NEW; END",
			"drop: DECLARE n int; BEGIN IF n = 1 THEN -- so NULL; PERFORM f(n); RETURN NULL; END IF; RETURN NEW; END",
			"drop: DECLARE n int; BEGIN IF n = 1 THEN -- so n := 2; NULL; RETURN NULL; END IF; RETURN NEW; END",
			"swap: DECLARE n int; BEGIN IF n = 1 THEN -- so PERFORM f(n); n := 2; RETURN NULL; END IF; RETURN NEW; END",
			"drop: DECLARE n int; BEGIN IF n = 1 THEN -- so n := 2; PERFORM f(n); NULL; END IF; RETURN NEW; END",
		},
	} {
		var got []string
		for _, m := range mutateSQL(text) {
			got = append(got, m.kind+": "+strings.Join(strings.Fields(text[:m.from]+m.mutated+text[m.to:]), " "))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s\nhas the mutants\n%s\nwant\n%s", text, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestTheLastDefinitionOfAFunctionCounts(t *testing.T) {
	t.Parallel()
	function := func(body string) string {
		return "CREATE OR REPLACE FUNCTION outbox.f(a int) RETURNS int\nLANGUAGE plpgsql AS $$" + body + "$$;\n"
	}
	const others = "CREATE FUNCTION outbox.g() RETURNS int LANGUAGE sql\nRETURN 1 + 1;\n" +
		"CREATE VIEW outbox.v AS SELECT 1;\n"
	texts := map[string]string{"1": function("old"), "2": others + function("new")}
	var got []string
	for _, b := range bodies([]string{"1", "2"}, texts) {
		got = append(got, b.name+" "+b.file+" "+texts[b.file][b.from:b.to])
	}
	if want := []string{"g 2  1 + 1", "v 2  SELECT 1", "f 2 new"}; !slices.Equal(got, want) {
		t.Errorf("the bodies are %q, want %q", got, want)
	}
}

func TestResultsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "results.txt")
	r := &results{path, map[string]string{}}
	c := &code{seen: map[string]int{}}
	c.add(&mutant{file: "a.go", function: "f", kind: "drop", text: "x()\n\ty()"})
	c.add(&mutant{file: "a.go", function: "f", kind: "drop", text: "x() y()"})
	m, twin := c.mutants[0], c.mutants[1]
	if m.id() == twin.id() {
		t.Errorf("two mutants are %s", m.id())
	}
	for _, verdict := range []string{survives + " 7 tests", equivalent + "y calls x", survives + " 8 tests"} {
		if err := r.set(m.id(), verdict); err != nil {
			t.Fatal(err)
		}
	}
	const gone, untested = "gone.go | f | drop: z()", "a.go | f | drop: x() y() #2"
	if err := errors.Join(r.set(gone, "killed by relay.TestZ"), r.set(untested, "killed by relay.TestY")); err != nil {
		t.Fatal(err)
	}
	again, err := readResults(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := again.of[m.id()]; got != equivalent+"y calls x" {
		t.Errorf("the reason is lost: %q", got)
	}
	if got := again.stale(c, map[string]bool{"relay.TestZ": true}); !slices.Equal(got, []string{untested, gone}) {
		t.Errorf("%q are stale", got)
	}
	if err := os.WriteFile(path, []byte("\tkilled by nobody\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readResults(path); err == nil {
		t.Error("a verdict without a mutant is taken")
	}
}
