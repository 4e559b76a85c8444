// Package docblocks checks the blocks of code in the documentation: Go is compiled, SQL is run on a
// server, and what a shell is told to run exists. It is for tests.
//
// A Go block is a whole file, declarations, or statements of a function that returns an error. What
// it uses and does not declare comes from the blocks of declarations before it on its page, else
// from testdata/PAGE.go, else from testdata/all.go; imports are added. SQL blocks run after
// testdata/all.sql and testdata/PAGE.sql, in a transaction that is rolled back; one with parameters
// ($1) is prepared. A page's name there has - for /: docs-security.sql. A line that is only … is
// left out, and RETURNING … returns all columns.
package docblocks

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Block is a fenced block of a page.
type Block struct {
	Page string // its path, with slashes, from the root of the repository
	Line int    // of the first line of Text
	Lang string // what follows the fence: go, sql, sh, console; may be ""
	Text string
}

// Read returns the blocks of README.md and the like, and of all pages below docs, in the root
// directory of the repository.
func Read(root string) ([]Block, error) {
	pages, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(filepath.Join(root, "docs"), func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			pages = append(pages, path)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(pages)
	var out []Block
	for _, path := range pages {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return nil, err
		}
		out = append(out, Parse(filepath.ToSlash(name), string(text))...)
	}
	return out, nil
}

var fence = regexp.MustCompile("(?ms)^```([a-z]*)[ \t]*\n(.*?)^```[ \t]*$")

// Parse returns the blocks of one page.
func Parse(page, text string) (out []Block) {
	for _, m := range fence.FindAllStringSubmatchIndex(text, -1) {
		out = append(out, Block{Page: page, Line: 1 + strings.Count(text[:m[4]], "\n"), Lang: text[m[2]:m[3]], Text: leaveOut(text[m[4]:m[5]])})
	}
	return out
}

var onlyDots = regexp.MustCompile(`(?m)^[ \t]*…[ \t]*$`)

func leaveOut(text string) string {
	return strings.ReplaceAll(onlyDots.ReplaceAllString(text, ""), "RETURNING …", "RETURNING *")
}

// Of returns the blocks of one language.
func Of(blocks []Block, lang string) []Block {
	return slices.DeleteFunc(slices.Clone(blocks), func(b Block) bool { return b.Lang != lang })
}

// prelude reads what the pages have in common or what one page has of its own; "" if there is
// nothing.
func prelude(page, extension string) (string, error) {
	name := strings.ReplaceAll(strings.TrimSuffix(page, ".md"), "/", "-") + extension
	text, err := preludes.ReadFile("testdata/" + name)
	if os.IsNotExist(err) {
		return "", nil
	}
	return string(text), err
}
