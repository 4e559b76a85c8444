package plan

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// A lane that fails a quarter of the time or more is named between its failures, also where several of
// them follow each other. One that fails for long and then works is not.
func TestALaneThatFailsNowAndAgainIsNamed(t *testing.T) {
	t.Parallel()
	for claims, want := range map[string]bool{
		strings.Repeat("fail ok ", 30):               true,
		strings.Repeat("fail fail fail ok ", 15):     true,
		strings.Repeat("fail fail fail fail ok ", 5): true,
		strings.Repeat("fail ok ok ok ok ok ", 15):   false,
		"ok " + strings.Repeat("fail ", 50) + "ok ":  false,
	} {
		var f Failing
		now := time.Now()
		for claim := range strings.FieldsSeq(claims) {
			if now = now.Add(time.Second); claim == "ok" {
				f.succeeded()
			} else {
				f.note(Failure{Err: errors.New("too slow")}, now, now)
			}
		}
		if f.fails() != want {
			t.Errorf("after %.60s…: named %v, want %v (share %.2f)", claims, f.fails(), want, f.share)
		}
	}
}
