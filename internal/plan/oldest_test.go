package plan

import (
	"testing"
	"time"
)

func TestClaimsByDueTimeGoOnAndBeginAnewAfterAWhile(t *testing.T) {
	t.Parallel()
	var o Oldest
	now, last := time.Now(), Due{RunAt: 5, TaskID: 7}
	if got := o.Begin(now); got != DueStart {
		t.Errorf("the first begins at %+v", got)
	}
	o.Note(last)
	for _, c := range []struct {
		after time.Duration
		want  Due
	}{{oldestFor - 1, last}, {oldestFor, DueStart}, {oldestFor + 1, DueStart}} {
		if got := o.Begin(now.Add(c.after)); got != c.want {
			t.Errorf("after %v one begins at %+v, want %+v", c.after, got, c.want)
		}
	}
}
