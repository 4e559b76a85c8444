package examples_test

import (
	"os/exec"
	"strings"
	"testing"
)

// An app can take these examples as they are.
func TestExamplesToBeCopiedImportNoInternalPackage(t *testing.T) {
	args := []string{"list", "-f", `{{.ImportPath}}: {{join .Imports " "}}`}
	for _, name := range []string{"chi", "echo", "gin", "nethttp", "worker"} {
		args = append(args, "./"+name)
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(out), "\n"); n != 5 {
		t.Errorf("go list knows %d of 5 examples", n)
	}
	for line := range strings.Lines(string(out)) {
		if example, imports, _ := strings.Cut(line, ": "); strings.Contains(imports, "/internal/") {
			t.Errorf("%s imports %s", example, imports)
		}
	}
}
