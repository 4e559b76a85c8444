package repotest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

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

// pages are all of the documentation.
func pages(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
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
		inDocs := strings.TrimPrefix(name, "docs/")
		if strings.Contains(inDocs, "/") && !strings.Contains(index, inDocs) {
			t.Errorf("docs/README.md has no link to %s", name)
		}
	}
	if found := deadLinks("docs/design.md", "[a](none.md) [b](features.md#none) [c](features.md#fetchq) "+
		"[d](../README.md) [e](https://example.com/none)"); len(found) != 2 {
		t.Errorf("the check found %q, want the first 2", found)
	}
}

// The README's figures are those of the report, line by line.
func TestTheReadmeQuotesTheReport(t *testing.T) {
	t.Parallel()
	report := read(t, "docs/benchmarks.md")
	_, quotes, _ := strings.Cut(read(t, "README.md"), "\n## How fast it is\n")
	quotes, _, _ = strings.Cut(quotes, "\n## ")
	quoted := 0
	for line := range strings.Lines(quotes) {
		if strings.HasPrefix(line, "|") {
			quoted++
			if !strings.Contains(report, "\n"+line) {
				t.Errorf("docs/benchmarks.md does not have the README's line %q", line)
			}
		} else if regexp.MustCompile(`[0-9.,]+(x|/s)\b`).MatchString(line) {
			t.Errorf("the README gives figures outside of the lines that it quotes: %s", line)
		}
	}
	if quoted < 3 {
		t.Errorf("the README quotes %d lines of a table, in the section \"How fast it is\"", quoted)
	}
}

// A program that the documentation shows first is a test of package outbox, line by line.
func TestThePagesShowProgramsThatRun(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ page, begin, file string }{
		{"README.md", "```go\n", "example_test.go"},
		{"docs/guide/testing.md", "```go\nfunc TestSignUp", "example_testing_test.go"},
	} {
		_, block, _ := strings.Cut(read(t, c.page), c.begin)
		block, _, found := strings.Cut(block, "```")
		if !found || !strings.Contains(read(t, c.file), block) {
			t.Errorf("the block %s of %s is not in %s", c.begin, c.page, c.file)
		}
	}
}
