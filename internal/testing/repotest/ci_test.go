package repotest

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

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
