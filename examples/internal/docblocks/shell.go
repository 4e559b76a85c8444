package docblocks

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// commands are those of other programs that the documentation may name.
var commands = []string{"cd", "createdb", "curl", "echo", "export", "git", "grep", "head", "jq", "kubectl", "mkdir", "psql", "read", "systemctl"}

// CheckShell looks whether what the shell blocks tell to run exists: packages, their flags, files,
// and the subcommands of cmd/outbox. Of console blocks these are the lines that begin with "$ ";
// the others are what is printed.
func CheckShell(root string, blocks []Block) (checked int, problems []error) {
	for _, b := range append(Of(blocks, "sh"), Of(blocks, "console")...) {
		checked++
		for i, line := range strings.Split(b.Text, "\n") {
			if b.Lang == "console" {
				command, prompt := strings.CutPrefix(line, "$ ")
				if !prompt {
					continue
				}
				line = command
			}
			for _, command := range commandsOf(line) {
				if err := checkCommand(root, command); err != nil {
					problems = append(problems, fmt.Errorf("%s:%d: %q: %w", b.Page, b.Line+i, strings.Join(command, " "), err))
				}
			}
		}
	}
	return checked, problems
}

var (
	comment    = regexp.MustCompile(`(^|\s)#.*$`)
	separator  = regexp.MustCompile(`&&|\|\||[|;()]`)
	quoted     = regexp.MustCompile(`'[^']*'|"[^"]*"`)
	assignment = regexp.MustCompile(`^[A-Z_]+=`)
)

// commandsOf are the commands of a line, each in words; quoted text counts as one word, "quoted".
func commandsOf(line string) (out [][]string) {
	line = comment.ReplaceAllString(quoted.ReplaceAllString(line, "quoted"), "")
	for _, part := range separator.Split(line, -1) {
		words := strings.Fields(part)
		for len(words) > 0 && assignment.MatchString(words[0]) {
			words = words[1:]
		}
		if len(words) > 0 {
			out = append(out, words)
		}
	}
	return out
}

func checkCommand(root string, words []string) error {
	switch name := words[0]; {
	case name == "go" && len(words) > 1:
		return checkGo(root, words[1], words[2:])
	case name == "outbox":
		if len(words) < 2 || strings.HasPrefix(words[1], "-") {
			return nil
		}
		return saysIn(root, "cmd/outbox", words[1:2])
	case name == "cd":
		return nil // to where the reader's app is, or a directory of this repository
	case !slices.Contains(commands, name):
		return fmt.Errorf("is %s a command? (internal/docblocks/shell.go has those that are known)", name)
	}
	for _, w := range words[1:] {
		if strings.HasSuffix(w, ".sql") && strings.Contains(w, "/") {
			if _, err := os.Stat(filepath.Join(root, w)); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkGo(root, subcommand string, args []string) error {
	if !slices.Contains([]string{"build", "get", "install", "list", "mod", "run", "test", "vet", "work"}, subcommand) {
		return fmt.Errorf("go has no command %s", subcommand)
	}
	for i, arg := range args {
		dir, local := strings.CutPrefix(arg, "./")
		if path, found := strings.CutPrefix(arg, module); found {
			path, _, _ = strings.Cut(path, "@")
			dir, local = strings.TrimPrefix(path, "/"), true
		}
		if !local || strings.HasSuffix(dir, "...") {
			continue
		}
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil || len(files) == 0 {
			return fmt.Errorf("there is no package in %q: %w", dir, os.ErrNotExist)
		}
		if subcommand == "run" {
			var flags []string
			for _, w := range args[i+1:] {
				if name, found := strings.CutPrefix(w, "-"); found && name != "h" {
					name, _, _ = strings.Cut(strings.TrimPrefix(name, "-"), "=")
					flags = append(flags, name)
				}
			}
			return saysIn(root, dir, flags)
		}
	}
	return nil
}

// saysIn looks for the words as string literals in the Go files of a directory, where flags and
// subcommands are defined.
func saysIn(root, dir string, words []string) error {
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		return err
	}
	var all strings.Builder
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		all.Write(text)
	}
	for _, w := range words {
		// cobra's Use has the arguments behind the name
		if !regexp.MustCompile("[\"`]" + regexp.QuoteMeta(w) + "[\"` ]").MatchString(all.String()) {
			return fmt.Errorf("%s does not know %s", dir, w)
		}
	}
	return nil
}
