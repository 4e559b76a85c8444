package doctor

import (
	"fmt"
	"time"
)

// said is a duration, rounded to what a person wants to know.
func said(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// plural is a number with its noun: 1 task, 2 tasks. A noun whose plural has no -s comes with that.
func plural[N int | int64](n N, noun string, nouns ...string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %s", n, append(nouns, noun+"s")[0])
}

// grade is how bad a number is that is to be small.
func grade(n, warning, critical int64) Severity {
	switch {
	case n >= critical:
		return Critical
	case n >= warning:
		return Warning
	}
	return OK
}
