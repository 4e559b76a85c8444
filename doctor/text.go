package doctor

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// said is a duration, rounded to a precision that people need.
func said(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// plural is a number with its noun: 1 task, 2 tasks. A plural without -s is given too.
func plural[N int | int64](n N, noun string, nouns ...string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %s", n, append(nouns, noun+"s")[0])
}

var plain = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
