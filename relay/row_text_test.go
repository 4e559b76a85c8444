package relay

import (
	"regexp"
	"testing"
)

func TestIDsAreRandomUUIDs(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		id := newUUID()
		if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(id) || seen[id] {
			t.Fatalf("%s is not a new UUID of version 4", id)
		}
		seen[id] = true
	}
}

func TestAClaimedTaskThatIsCutOffIsAnError(t *testing.T) {
	t.Parallel()
	var r row
	if _, err := r.fromText("1\x1f0\x1f0"); err == nil {
		t.Error("no error")
	}
	xid, err := r.fromText("7\x1f-1\x1f2\x1f3000000\x1f\x1f99\x1f\x1f{\"a\": 1}")
	if err != nil || xid != "99" || r.id != 7 || r.priority != -1 || r.attempt != 2 || r.runAt != 3000000 || r.createdAt != 3000000 || r.payload != `{"a": 1}` {
		t.Errorf("got %+v of transaction %s, error %v", r, xid, err)
	}
}
