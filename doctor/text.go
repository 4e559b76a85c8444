package doctor

import (
	"fmt"
	"time"
)

// age is a duration of microseconds, as it is said.
func age(us int64) string { return said(time.Duration(us) * time.Microsecond) }

func said(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// plural is "1 task", "2 tasks".
func plural[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
