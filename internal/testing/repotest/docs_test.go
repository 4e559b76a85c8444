package repotest

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

var (
	testName  = regexp.MustCompile(`^(Test|Example|Benchmark|Fuzz)([A-Z_]|$)`)
	codeSpan  = regexp.MustCompile("`([^`\n]+)`")
	anyBlock  = regexp.MustCompile("(?s)```.*?```")
	aTest     = regexp.MustCompile(`(?:\b([a-z]+)\.)?\b((?:Test|Example|Benchmark|Fuzz)(?:[A-Z_]\w*)?)\b`)
	qualified = regexp.MustCompile(`\b(outbox|admin|dashboard|doctor|forward|handlers|inbox|outboxamqp|outboxkafka|outboxnats|outboxotel|outboxprom|outboxtest|outboxwatermill|outboxwebhook|pgdb|relay|schema)\.([A-Z]\w*)(?:\.([A-Z]\w*))?`)
	ofTask    = regexp.MustCompile(`\btask\.([A-Z]\w*)`)
	oneName   = regexp.MustCompile(`^([A-Z]\w*[a-z]\w*)(\.[A-Z]\w*)?(\(.*\))?$`)
)

// unknown are the names in a text of the documentation that the repository does not have.
func (n names) unknown(text string) (out []string) {
	check := func(found bool, what string) {
		if !found {
			out = append(out, what)
		}
	}
	for _, span := range codeSpan.FindAllStringSubmatch(anyBlock.ReplaceAllString(text, ""), -1) {
		s := span[1]
		if tests := aTest.FindAllStringSubmatch(s, -1); testName.MatchString(s[strings.LastIndex(s, ".")+1:]) &&
			len(tests) > 0 {
			for _, m := range tests {
				_, found := n.tests[m[1]+"."+m[2]]
				check(found, m[0])
			}
			continue
		}
		for _, m := range qualified.FindAllStringSubmatch(s, -1) {
			if m[3] != "" {
				m[2] += "." + m[3]
			}
			check(n.api[m[1]+"."+m[2]], m[0])
		}
		for _, m := range ofTask.FindAllStringSubmatch(s, -1) {
			check(n.api["outbox.Task."+m[1]], m[0])
		}
		if m := oneName.FindStringSubmatch(s); m != nil && !n.has(m[1]+m[2]) &&
			(n.has(m[1]) || m[2] == "" || !n.has(m[2][1:])) { // a variable's method is fine
			out = append(out, s)
		}
	}
	return out
}

// has knows names without their package, and members without their type.
func (n names) has(name string) bool {
	for known := range n.api {
		if strings.HasSuffix(known, "."+name) {
			return true
		}
	}
	return false
}

// rowFaults says what a row of docs/features.md lacks: a capability, its API, an example with an
// output, and a test.
func (n names) rowFaults(row string) (out []string) {
	cells := strings.Split(strings.Trim(row, "| "), "|")
	if len(cells) != 4 {
		return []string{fmt.Sprintf("%d cells, want 4", len(cells))}
	}
	if strings.TrimSpace(cells[1]) == "" {
		out = append(out, "no API")
	}
	examples, tests := 0, 0
	for _, m := range aTest.FindAllStringSubmatch(cells[2], -1) {
		examples++
		if !n.outputs[m[1]+"."+m[2]] {
			out = append(out, m[0]+" is no example with an output")
		}
	}
	for _, m := range aTest.FindAllStringSubmatch(cells[3], -1) {
		if !strings.HasPrefix(m[2], "Example") {
			tests++
		}
	}
	if examples == 0 || tests == 0 {
		out = append(out, fmt.Sprintf("%d examples and %d tests, want some of each", examples, tests))
	}
	for _, m := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(cells[3], -1) {
		if !n.strings[m[1]] {
			out = append(out, "no subtest "+m[0])
		}
	}
	return out
}

func TestTheDocumentationNamesWhatExists(t *testing.T) {
	t.Parallel()
	n := allNames(t)
	for _, name := range pages(t) {
		for _, u := range n.unknown(read(t, name)) {
			t.Errorf("%s: there is no %s", name, u)
		}
	}
}

func TestEachRowOfTheTableOfFeaturesIsFilledIn(t *testing.T) {
	t.Parallel()
	n := allNames(t)
	rows := 0
	for line := range strings.Lines(read(t, "docs/features.md")) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") ||
			strings.HasPrefix(line, "| capability |") {
			continue
		}
		rows++
		for _, fault := range n.rowFaults(line) {
			t.Errorf("%s\n%s", fault, line)
		}
	}
	if rows < 40 {
		t.Errorf("%d rows, want 40 at least", rows)
	}
}

// Each invariant of docs/design.md names tests, whose comments cite it.
func TestEachInvariantIsCitedByItsTests(t *testing.T) {
	t.Parallel()
	n := allNames(t)
	rows := regexp.MustCompile(`(?m)^\| (I\d+) \|.*\| (.*) \|$`).FindAllStringSubmatch(read(t, "docs/design.md"), -1)
	for i, row := range rows {
		if want := fmt.Sprintf("I%d", i+1); row[1] != want {
			t.Fatalf("row %d of the invariants is %s, want %s", i+1, row[1], want)
		}
		cites := regexp.MustCompile(`\b` + row[1] + `\b`)
		tests := aTest.FindAllStringSubmatch(row[2], -1)
		if len(tests) == 0 {
			t.Errorf("%s names no test", row[1])
		}
		for _, m := range tests {
			if !cites.MatchString(n.tests[m[1]+"."+m[2]]) {
				t.Errorf("the comment of %s does not cite %s", m[0], row[1])
			}
		}
	}
	if len(rows) != 13 {
		t.Errorf("docs/design.md has %d invariants, want 13", len(rows))
	}
}
