package examples_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	quotedOrComment = regexp.MustCompile(`'[^']*'|"[^"]*"|(^|\s)#.*$`)
	separator       = regexp.MustCompile(`&&|\|\||[|;()]`)
	thisRepository  = regexp.MustCompile(`^(?:\./|github\.com/txoutbox/outbox/|schema/)[\w./-]+\w`)
)

// checkShell looks whether what shell blocks tell to run exists: packages, the flags that go run
// gives them, files of the schema, and subcommands of cmd/outbox. Of a console block these are the
// lines after "$ "; the others are what is printed.
func checkShell(_ *testing.T, blocks []block) (problems []string) {
	for _, b := range blocks {
		for i, line := range strings.Split(b.text, "\n") {
			if line, prompt := strings.CutPrefix(line, "$ "); prompt || b.lang == "sh" {
				for _, command := range separator.Split(quotedOrComment.ReplaceAllString(line, ""), -1) {
					if err := checkCommand(command); err != nil {
						problems = append(problems, fmt.Sprintf("%s:%d: %v", b.page, b.line+i, err))
					}
				}
			}
		}
	}
	return problems
}

func checkCommand(command string) error {
	words := strings.Fields(command)
	for i, word := range words {
		path := strings.TrimPrefix(thisRepository.FindString(word), "github.com/txoutbox/outbox/")
		if path == "" || strings.HasSuffix(word, "...") {
			continue
		}
		path = filepath.Clean(path)
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			return fmt.Errorf("there is no %s", path)
		}
		if strings.HasPrefix(command, "go run ") {
			for _, flag := range words[i+1:] {
				name, isFlag := strings.CutPrefix(flag, "-")
				name, _, _ = strings.Cut(name, "=")
				if isFlag && name != "h" && !says(path, name) {
					return fmt.Errorf("%s has no %s", path, name)
				}
			}
		}
	}
	if len(words) > 1 && words[0] == "outbox" && !strings.HasPrefix(words[1], "-") && !says("cmd/outbox", words[1]) {
		return fmt.Errorf("cmd/outbox has no %s", words[1])
	}
	return nil
}

// says looks for the name of a flag or a subcommand in the string literals of a package. The
// arguments of a subcommand follow its name.
func says(dir, name string) bool {
	literal := regexp.MustCompile("[\"`]" + regexp.QuoteMeta(name) + "[\"` ]")
	files, _ := filepath.Glob(filepath.Join(root, dir, "*.go"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && literal.Match(text) {
			return true
		}
	}
	return false
}
