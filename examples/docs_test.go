package examples_test

import (
	"testing"

	"github.com/txoutbox/outbox/internal/docblocks"
)

// The others are compiled by a test of the root module, with the same name.
func TestTheCodeOfTheDocumentationWorks(t *testing.T) {
	blocks, err := docblocks.Read("..")
	if err != nil {
		t.Fatal(err)
	}
	compiled, problems, err := docblocks.Compile("..", ".", blocks, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Error(p)
	}
	if want, err := docblocks.Elsewhere("..", blocks); err != nil || compiled != want || want == 0 {
		t.Errorf("%d blocks were compiled of %d that need a module of the examples, %v", compiled, want, err)
	}
}
