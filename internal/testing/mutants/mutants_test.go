package main

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

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
	if a > 3 || b >= 4 || a <= 5 {
		return 7
	}
	return n
}

func g() {}
`

// check type-checks the files of a package, and returns its functions' mutants.
func check(t *testing.T, texts ...string) *goFile {
	t.Helper()
	p := &source{fset: token.NewFileSet(), info: &types.Info{
		Uses: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{},
	}}
	for i, text := range texts {
		file, err := parser.ParseFile(p.fset, string('a'+rune(i))+".go", text, 0)
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		p.files = append(p.files, file)
	}
	var err error
	if p.types, err = (&types.Config{Importer: importer.Default()}).Check("a", p.fset, p.files, p.info); err != nil {
		t.Fatalf("%v in\n%s", err, strings.Join(texts, "\n"))
	}
	f := &goFile{source: p, code: &code{}, path: "a.go", text: texts[0]}
	f.find(p.files[0])
	return f
}

func TestGoCodeHasMutantsOfEachKind(t *testing.T) {
	t.Parallel()
	var got []string
	f := check(t, goText)
	check(t, f.changed(), fmt.Sprintf(chooser, "a"))
	for i, m := range f.code.mutants {
		got = append(got, m.kind+": "+m.text)
		if m.number != i+1 {
			t.Errorf("%v has number %d", m, m.number)
		}
	}
	for _, want := range []string{
		"negate: a < b && on()", "drop operand: [a < b && ] on()", "drop operand: a < b [ && on()]",
		"bound: a < b", "operands: b < a",
		"drop: n = a", "drop: a = n + 1", "drop: return min(a, b)",
		"negate: i == a", "drop: n++", "drop: g()", "drop: defer g()",
		"negate: a > 3 || b >= 4 || a <= 5", "drop operand: [a > 3 || b >= 4 || ] a <= 5",
		"drop operand: a > 3 || b >= 4 [ || a <= 5]", "drop operand: [a > 3 || ] b >= 4", "drop operand: a > 3 [ || b >= 4]",
		"bound: a > 3", "operands: 3 > a", "bound: b >= 4", "operands: 4 >= b", "bound: a <= 5", "operands: 5 <= a",
		"drop: return 7",
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

// A module whose tests notice some mutants: one panics with a mutant, and one has no end.
func TestEachTestThatFailsIsNoted(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module a\n\ngo 1.24\n",
		"a.go": `package a

func f(a, b int) bool { return a < b }

func g(list []int) (n int) {
	for n < len(list) {
		if list[n] == 0 {
			return n
		}
		n++
	}
	return 0
}
`,
		"a_test.go": `package a

import "testing"

func TestF(t *testing.T) {
	if !f(1, 2) {
		t.Error("1")
	}
}

func TestBoundOfF(t *testing.T) {
	if f(2, 2) {
		t.Error("2")
	}
}

func TestG(t *testing.T) {
	if g([]int{1, 0}) != 1 || g([]int{1}) != 0 {
		t.Error("3")
	}
}

func TestNothing(t *testing.T) {}
`,
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GOWORK", "off")
	t.Setenv("GOFLAGS", "")
	t.Chdir(root)
	c, err := load(root, ".", false)
	if err != nil {
		t.Fatal(err)
	}
	ts, err := compile(t.Context(), root, ".", c.replaced)
	if err != nil {
		t.Fatal(err)
	}
	defer ts.remove()
	if err := ts.trace(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, m := range c.mutants {
		by, err := ts.killers(t.Context(), m, false)
		if err != nil {
			t.Fatal(err)
		}
		got[m.kind+": "+m.text] = strings.Join(by, " ")
	}
	want := map[string]string{
		"negate: a < b": "TestF TestBoundOfF", "bound: a < b": "TestBoundOfF", "operands: b < a": "TestF",
		"bound: n < len(list)": "TestG", "operands: len(list) < n": "TestG", "negate: list[n] == 0": "TestG",
		"drop: return n": "TestG", "drop: n++": "TestG",
	}
	if !maps.Equal(got, want) {
		t.Errorf("killers are %q, want %q", got, want)
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
