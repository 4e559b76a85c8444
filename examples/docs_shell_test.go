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
	ofRepository    = regexp.MustCompile(`^(?:\./|github\.com/txoutbox/outbox/|(schema/))([\w./-]+\w)`)
)

// checkShell looks whether the packages, files, flags and subcommands exist that shell blocks name.
// The commands of a console block are behind "$ "; its other lines are output.
func checkShell(_ *testing.T, blocks []block) (problems []string) {
	for _, b := range blocks {
		for i, line := range strings.Split(b.text, "\n") {
			line, prompt := strings.CutPrefix(line, "$ ")
			if b.lang == "console" && !prompt {
				continue
			}
			for _, command := range separator.Split(quotedOrComment.ReplaceAllString(line, ""), -1) {
				if missing := missingIn(strings.Fields(command)); missing != "" {
					problems = append(problems, fmt.Sprintf("%s:%d: there is no %s", b.page, b.line+i, missing))
				}
			}
		}
	}
	return problems
}

// missingIn is the first word of a command that names nothing, "" if there is none.
func missingIn(words []string) string {
	program := ""
	for i, word := range words {
		if m := ofRepository.FindStringSubmatch(word); m != nil && !strings.HasSuffix(word, "...") {
			if _, err := os.Stat(filepath.Join(root, m[1]+m[2])); err != nil {
				return m[1] + m[2]
			}
			if i == 2 && words[1] == "run" {
				program = m[2]
			}
		}
		name, _, _ := strings.Cut(word, "=")
		if program != "" && strings.HasPrefix(name, "-") && name != "-h" && !says(program, name[1:]) {
			return program + " " + name
		}
	}
	if len(words) > 1 && words[0] == "outbox" && words[1][0] != '-' && !says("cmd/outbox", words[1]) {
		return "outbox " + words[1]
	}
	return ""
}

// says looks for the name of a flag or a subcommand in the string literals of a package.
func says(dir, name string) bool {
	literal := regexp.MustCompile("[\"`]" + regexp.QuoteMeta(name) + "[\"` ]")
	files, _ := filepath.Glob(filepath.Join(root, dir, "*.go"))
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && literal.Match(text) {
			return true
		}
	}
	return false
}
