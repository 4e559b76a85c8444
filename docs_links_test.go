package outbox_test

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
			slug := strings.ReplaceAll(notInSlugs.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-") // as GitHub makes them
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
	for _, name := range pages(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range deadLinks(name, string(text)) {
			t.Errorf("%s: the link %s leads nowhere", name, l)
		}
		for folder, indexes := range map[string][]string{
			"docs/guide/": {"docs/README.md"},
			"docs/tools/": {"docs/README.md"},
		} {
			if !strings.HasPrefix(name, folder) {
				continue
			}
			for _, from := range indexes {
				index, err := os.ReadFile(from)
				if err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(string(index), strings.TrimPrefix(folder, "docs/")+filepath.Base(name)) {
					t.Errorf("%s has no link to %s", from, name)
				}
			}
		}
	}
	if found := deadLinks("docs/design.md", "[a](none.md) [b](features.md#none) [c](features.md#fetchq) [d](../README.md) [e](https://example.com/none)"); len(found) != 2 {
		t.Errorf("the check found %q, want the first 2", found)
	}
}
