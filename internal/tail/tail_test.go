package tail

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const relay = "01234567-89ab-cdef-0123-456789abcdef"

// PostgreSQL takes less than 8,000 bytes, and each event arrives once, in its order.
func TestTextsFitIntoANotifyAndKeepTheOrder(t *testing.T) {
	m := Message{Relay: relay, LeftOut: 7}
	for i := range 2000 {
		m.Events = append(m.Events, Event{At: 1, Name: "infrastructure", Type: strings.Repeat("\u2028", 40),
			Kind: "leased", TaskID: int64(i + 1), Attempt: 32767, Took: 1 << 50, Reason: "lost_connections"})
	}
	next, leftOut := int64(1), int64(0)
	for _, text := range Encode(m) {
		if len(text) >= 8000 {
			t.Fatalf("a text has %d bytes", len(text))
		}
		got, ok := Decode(text)
		if !ok || got.Relay != relay {
			t.Fatalf("not decoded: %s", text)
		}
		leftOut += got.LeftOut
		for _, e := range got.Events {
			if want := m.Events[next-1]; e != want {
				t.Fatalf("got %v, want %v", e, want)
			}
			next++
		}
	}
	if next != 2001 || leftOut != 7 {
		t.Errorf("%d events arrived, and %d as left out", next-1, leftOut)
	}
	if got := Encode(Message{Relay: relay}); got != nil {
		t.Errorf("nothing happened, and it is told by %q", got)
	}
}

// Any role of the database can send a text.
func TestWhatNoRelaySendsIsIgnored(t *testing.T) {
	good := `{"r":"` + relay + `","e":[{"t":1,"n":"done","y":"A","k":"tx","i":1,"a":1}]}`
	if _, ok := Decode(good); !ok {
		t.Fatal("a good text is ignored")
	}
	for _, text := range []string{
		"", "x", "null", "[]", "{}", Probe + "1", strings.Repeat("[", 7000),
		strings.Replace(good, relay, "relay", 1),
		strings.Replace(good, `"n":"done"`, `"n":"\u001b[2J"`, 1),
		strings.Replace(good, `"n":"done"`, `"n":""`, 1),
		strings.Replace(good, `"k":"tx"`, `"k":"a b"`, 1),
		strings.Replace(good, `"a":1`, `"a":-1`, 1),
		strings.Replace(good, `"a":1`, `"r":"<b>"`, 1),
		strings.Replace(good, `"i":1`, `"i":0`, 1),
		strings.Replace(good, `"i":1`, `"i":1e400`, 1),
		strings.Replace(good, `"t":1`, `"t":9223372036854775807`, 1),
		strings.Replace(good, `"t":1`, `"t":-1`, 1),
		strings.Replace(good, `"y":"A"`, `"y":""`, 1),
		strings.Replace(good, `"y":"A"`, `"y":"`+strings.Repeat("A", 129)+`"`, 1),
		strings.Replace(good, `"e":`, `"o":-1,"e":`, 1),
	} {
		if m, ok := Decode(text); ok {
			t.Errorf("%.100s is %v", text, m)
		}
	}
}

func TestARequestIsBelievedForThirtySeconds(t *testing.T) {
	now := time.Unix(1_800_000_000, 500)
	for ahead, want := range map[int64]bool{-1e9: false, -1: false, 1: true, 15: true, 30: true, 31: false, 1e15: false} {
		if left := Left(now.Unix()+ahead, now); left > Most || left > 0 != want {
			t.Errorf("a request for %d s is one for %v", ahead, left)
		}
	}
	if Left(0, now) != 0 {
		t.Error("nobody ever asked, and it is a request")
	}
}

// A name of PostgreSQL has 63 bytes at most; NOTIFY refuses a longer channel, and LISTEN cuts it.
func TestEachSchemaHasAChannelOfItsOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, n := range []int{1, 57, 58, 59, 62, 63} {
		for i := range 10 {
			c := Channel(fmt.Sprintf("%s%d", strings.Repeat("a", n-1), i))
			if len(c) > 63 || seen[c] || !strings.Contains(c, ".") {
				t.Errorf("a channel is %q", c)
			}
			seen[c] = true
		}
	}
}
