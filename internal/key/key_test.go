package key_test

import (
	"math"
	"testing"

	"github.com/txoutbox/outbox/internal/key"
)

const database = "0b5a3c1e-77d2-4f60-9c4b-5f1f7a1e2d3c"

func TestAKeyHasTheDatabaseAndTheTask(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		database string
		id       int64
		want     string
	}{
		{database, 42, "0b5a3c1e-77d2-8f60-8000-00000000002a"},
		{database, 1, "0b5a3c1e-77d2-8f60-8000-000000000001"},
		{database, 1<<48 + 5, "0b5a3c1e-77d2-8f60-8001-000000000005"},
		{database, 1<<62 - 1, "0b5a3c1e-77d2-8f60-bfff-ffffffffffff"},
		{"", 42, "00000000-0000-8000-8000-00000000002a"}, // of a Task that a test made
	} {
		got := key.Of(c.database, c.id)
		if got != c.want {
			t.Errorf("task %d of %q: %s, want %s", c.id, c.database, got, c.want)
		}
		if id, ok := key.TaskID(got); !ok || id != c.id {
			t.Errorf("%s is of task %d (%v), want %d", got, id, ok, c.id)
		}
	}
	if got := key.Of(database, math.MaxInt64); len(got) != 36 || got[14] != '8' || got[19] != 'b' {
		t.Errorf("the key of the largest id is %s: not a UUID of version 8", got)
	}
}

func TestWhatIsNoKeyHasNoTask(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "42", database, "0b5a3c1e-77d2-8f60-8000-00000000002A", "0b5a3c1e-77d2-8f60-c000-00000000002a",
		"0b5a3c1e-77d2-8f60-8000-00000000-02a", "0b5a3c1e 77d2-8f60-8000-00000000002a", "0b5a3c1e-77d2-8f60-80000-0000000002a", "ü b5a3c1e-77d2-8f60-8000-00000000002"} {
		if id, ok := key.TaskID(text); ok {
			t.Errorf("%q is the key of task %d", text, id)
		}
	}
}
