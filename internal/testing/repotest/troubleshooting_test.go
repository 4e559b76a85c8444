package repotest

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	causeKind   = regexp.MustCompile(`Cause\w+ +CauseKind = "(\w+)"`)
	joined      = regexp.MustCompile(`["` + "`" + `]\s*\+\s*["` + "`" + `]`) // two literals that are one text
	quotedWords = regexp.MustCompile(`"([^"]+)"`)
	number      = regexp.MustCompile(`\d+`)
	ofDoctor    = regexp.MustCompile("`outbox doctor`: (`[a-z-]+`(?:, `[a-z-]+`)*)")
	ofCommands  = regexp.MustCompile(`^outbox ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?`)
)

// sources are the Go files below the directories that are no tests, with joined literals.
func sources(t *testing.T, dirs ...string) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			all.WriteString(joined.ReplaceAllString(read(t, path), ""))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

// section is the text below a heading of the page.
func section(t *testing.T, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(read(t, "docs/troubleshooting.md"), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("docs/troubleshooting.md has no section %q", heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// The answers of "why does it wait?" are a closed list in admin/why.go.
func TestEachAnswerToWhyATaskWaitsHasARemedy(t *testing.T) {
	t.Parallel()
	missing := map[string]bool{}
	for _, m := range causeKind.FindAllStringSubmatch(read(t, "admin/why.go"), -1) {
		missing[m[1]] = true
	}
	if len(missing) < 20 {
		t.Fatalf("admin/why.go has %d kinds of causes", len(missing))
	}
	known := len(missing)
	code := sources(t, "admin", "internal/origin", "internal/taskview")
	kinds := 0
	for line := range strings.Lines(section(t, "Why does it wait?")) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "`") {
			continue
		}
		for _, m := range codeSpan.FindAllStringSubmatch(cells[1], -1) {
			kinds++
			delete(missing, m[1])
		}
		for _, m := range quotedWords.FindAllStringSubmatch(cells[2], -1) {
			if !strings.Contains(code, number.ReplaceAllString(m[1], "%d")) {
				t.Errorf("no answer has the words %q", m[1])
			}
		}
		if strings.TrimSpace(cells[3]) == "" {
			t.Errorf("no remedy: %s", line)
		}
	}
	for kind := range missing {
		t.Errorf("docs/troubleshooting.md lacks the answer %s", kind)
	}
	if kinds != known {
		t.Errorf("docs/troubleshooting.md has %d answers, want %d", kinds, known)
	}
}

// A search for the words of a log record or an error finds the page, and its commands are there.
func TestTroubleshootingHasTheWordsOfTheCode(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/troubleshooting.md")
	code := sources(t, ".")
	tool, doctor, board := sources(t, "cmd/outbox"), sources(t, "doctor"), sources(t, "dashboard")
	records, commands, checks := 0, 0, 0
	for _, m := range codeSpan.FindAllStringSubmatch(anyBlock.ReplaceAllString(page, ""), -1) {
		if strings.HasPrefix(m[1], "outbox: ") || strings.HasPrefix(m[1], "schema: ") {
			records++
			if quoted := strconv.Quote(m[1]); !strings.Contains(code, quoted[:len(quoted)-1]) {
				t.Errorf("no record and no error begins with %q", m[1])
			}
		}
		for i, word := range ofCommands.FindStringSubmatch(m[1]) {
			if i == 0 || word == "" {
				continue
			}
			commands++
			if !regexp.MustCompile(`\bUse\b[^"\n]*"` + word + `[ "]`).MatchString(tool) {
				t.Errorf("`%s`: there is no command %s", m[1], word)
			}
		}
	}
	for _, m := range ofDoctor.FindAllStringSubmatch(page, -1) {
		for _, check := range codeSpan.FindAllStringSubmatch(m[1], -1) {
			checks++
			if !strings.Contains(doctor, `"`+check[1]+`"`) {
				t.Errorf("the doctor has no check %s", check[1])
			}
		}
	}
	answers := 0
	for _, m := range quotedWords.FindAllStringSubmatch(section(t, "Dashboard"), -1) {
		if answers++; !strings.Contains(board, m[1]) {
			t.Errorf("the dashboard does not answer %q", m[1])
		}
	}
	if answers < 3 || records < 15 || commands < 30 || checks < 10 {
		t.Errorf("%d records, %d words of commands, %d checks and %d answers are compared",
			records, commands, checks, answers)
	}
	for _, words := range []string{
		"remaining connection slots", "cached plan must not change result type", "SSL is not enabled on the server",
		"permission denied for", "canceling statement due to", "idle in transaction"} {
		if !strings.Contains(page, words) {
			t.Errorf("docs/troubleshooting.md lacks PostgreSQL's words %q", words)
		}
	}
}
