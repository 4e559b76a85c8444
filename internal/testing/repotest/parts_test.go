package repotest

import (
	"go/ast"
	"go/types"
	"regexp"
	"testing"
)

var relayType = regexp.MustCompile(`(^|[^.\w])Relay\b`)

// A Relay starts its parts and knows them; no part knows the Relay.
func TestNoPartRefersToRelay(t *testing.T) {
	t.Parallel()
	structs := 0
	for _, p := range packages(t) {
		if p.ImportPath != module+"/relay" {
			continue
		}
		for _, file := range p.files {
			ast.Inspect(file, func(n ast.Node) bool {
				s, ok := n.(*ast.StructType)
				if !ok {
					return true
				}
				structs++
				for _, f := range s.Fields.List {
					if text := types.ExprString(f.Type); relayType.MatchString(text) {
						t.Errorf("%s: a field has the type %s", fset.Position(f.Pos()), text)
					}
				}
				return true
			})
		}
	}
	if structs < 15 {
		t.Errorf("%d structs were found", structs)
	}
}
