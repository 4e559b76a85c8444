package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestTextIsFitForATerminal(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain ünïcode 日本": "plain ünïcode 日本", "": "", "a\nb\tc\r": `a\nb\tc\r`, "\x1b[2J\x07": `\x1b[2J\a`,
		"a\u202eb": `a\u202eb`, "\u009b2J": `\u009b2J`, "\xff\x9b": `\xff\x9b`, "\U000e0041": `\U000e0041`,
		"\x7f": `\x7f`, "a\u00a0b": `a\u00a0b`,
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestJSONMeansTheSameWhenItIsFitForATerminal(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"\x1b[2J\u009b\x7f", "\u202e\U000e0041\U0010ffff 日本", "a\nb\t\"\\", "\u2028\u00a0"} {
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		cleaned := cleanJSON(text)
		var got string
		if err := json.Unmarshal(cleaned, &got); err != nil || got != s {
			t.Errorf("%s: got %q, %v, want %q", cleaned, got, err, s)
		}
		if c := clean(string(cleaned)); c != string(cleaned) {
			t.Errorf("not fit for a terminal: %q", cleaned)
		}
	}
}

func TestAgesAreShort(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"0s": -time.Hour, "0.4s": 400 * time.Millisecond, "0.1s": time.Microsecond, "12s": 12*time.Second + 999*time.Millisecond,
		"3m12s": 3*time.Minute + 12*time.Second, "5h03m": 5*time.Hour + 3*time.Minute + 59*time.Second, "3d04h": 76 * time.Hour,
	} {
		if got := age(d); got != want {
			t.Errorf("age(%v) = %q, want %q", d, got, want)
		}
	}
	if got := count(1234567, "task") + ", " + count(1, "task"); got != "1,234,567 tasks, 1 task" {
		t.Errorf("got %q", got)
	}
}

func TestAPasswordThatIsNotEscapedIsMisread(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]bool{
		"postgres://a:b/c@db/shop": true, "postgres://a:b?c@db/shop": true, "postgres://a:b#c@db/shop": true,
		"postgres://a:12/c@db/shop": true, "postgres://a:b@db/shop": false, "postgres://a:b%2Fc@db/shop": false,
		"postgres://db:5432/shop?user=a@corp": false, "postgres://a@db/shop": false, "host=db password=a/b@c": false,
	} {
		if got := misread(dsn); got != want {
			t.Errorf("%s: got %v, want %v", dsn, got, want)
		}
	}
}

func TestAnErrorIsCutInTheMiddle(t *testing.T) {
	t.Parallel()
	long := "dead: mail to user 501: " + strings.Repeat("ä", 60) + " refuses the recipient: 552 5.2.2 mailbox is full"
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"boom\nat main.go:1", "boom"},
		{strings.Repeat("ä", 80), strings.Repeat("ä", 80)},
		{strings.Repeat("ä", 81), strings.Repeat("ä", 29) + "…" + strings.Repeat("ä", 50)},
		{long + "\nmore", "dead: mail to user 501: äääää…" + "ä refuses the recipient: 552 5.2.2 mailbox is full"},
	} {
		if got := cutError(c.in); got != c.want {
			t.Errorf("%q becomes %q, want %q", c.in, got, c.want)
		}
	}
}
