package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// clean escapes control characters, and characters that change the direction or the look of other
// text: any enqueuer can write names, errors and payloads. The result is one line.
func clean(s string) string {
	quoted := strconv.Quote(s)
	return strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(quoted[1 : len(quoted)-1])
}

// cleanJSON escapes the same in a JSON text, without changing its values.
func cleanJSON(text []byte) (out []byte) {
	for _, r := range string(text) {
		if r == '\n' || unicode.IsPrint(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			out = fmt.Appendf(out, `\u%04x`, unit)
		}
	}
	return out
}

// cut is the beginning of a text, of n characters at most.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:max(n-1, 0)]) + "…"
}

// cutError is the first line of an error, of 80 runes at most: the beginning and the end, which has
// the cause.
func cutError(s string) string {
	first, _, _ := strings.Cut(s, "\n")
	line := []rune(first)
	if len(line) <= 80 {
		return first
	}
	return string(line[:29]) + "…" + string(line[len(line)-50:])
}

// text is a value for people: times are in the local zone. A zero time or duration is "".
func text(v any) string {
	switch v := v.(type) {
	case time.Time:
		if v.IsZero() {
			return ""
		}
		return v.Local().Format("2006-01-02 15:04:05")
	case time.Duration:
		if v == 0 {
			return ""
		}
		return age(v)
	}
	return fmt.Sprint(v)
}

// since is how long ago a time was; "" for the zero time.
func since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return age(time.Since(t))
}

// when is a time in the local zone with its distance from now; "" for the zero time.
func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	said := t.Local().Format("2006-01-02 15:04:05 MST")
	if d := time.Until(t); d > 0 {
		return said + " (in " + age(d) + ")"
	}
	return said + " (" + since(t) + " ago)"
}

// age is a duration for people: 0.4s, 12s, 3m12s, 5h03m, 3d04h.
func age(d time.Duration) string {
	d = max(d, 0)
	switch s := int64(d / time.Second); {
	case d == 0:
		return "0s"
	case s < 1:
		return fmt.Sprintf("0.%ds", max(d/(100*time.Millisecond), 1))
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%dh%02dm", s/3600, s/60%60)
	default:
		return fmt.Sprintf("%dd%02dh", s/86400, s/3600%24)
	}
}

// count is a number with its noun: 1 dead letter, 1,234 dead letters.
func count[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return grouped(n) + " " + noun + "s"
}

// grouped is a number for sentences: 1,234.
func grouped[N int | int64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
