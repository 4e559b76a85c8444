package relay_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var relayType = regexp.MustCompile(`(^|[^.\w])Relay\b`)

// A Relay starts its parts and knows them; none of them knows it.
func TestNoPartRefersToRelay(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	structs := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			s, ok := n.(*ast.StructType)
			if !ok {
				return true
			}
			structs++
			for _, f := range s.Fields.List {
				if text := types.ExprString(f.Type); relayType.MatchString(text) {
					t.Errorf("%s: a struct has a field of type %s; give it what it needs", name, text)
				}
			}
			return true
		})
	}
	if structs < 30 {
		t.Errorf("%d structs were found", structs)
	}
}
