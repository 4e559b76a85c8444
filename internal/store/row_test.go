package store

import (
	"encoding/json"
	"maps"
	"regexp"
	"testing"
)

func TestIDsAreRandomUUIDs(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		id := NewUUID()
		if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(id) || seen[id] {
			t.Fatalf("%s is not a new UUID of version 4", id)
		}
		seen[id] = true
	}
}

func TestAClaimedTaskThatIsCutOffIsAnError(t *testing.T) {
	t.Parallel()
	var r Row
	if _, err := r.FromText("1\x1f0\x1f0"); err == nil {
		t.Error("no error")
	}
	xid, err := r.FromText("7\x1f-1\x1f2\x1f3000000\x1f\x1f99\x1f\x1f{\"a\": 1}")
	if err != nil || xid != "99" || r.ID != 7 || r.Priority != -1 || r.Attempt != 2 || r.RunAt != 3000000 || r.createdAt != 3000000 || r.Payload != `{"a": 1}` {
		t.Errorf("got %+v of transaction %s, error %v", r, xid, err)
	}
}

func TestHeadersAreTextsWhateverPlainSQLHasStored(t *testing.T) {
	t.Parallel()
	for column, want := range map[string]map[string]string{
		`{}`: {}, `{"a": "b", "c": ""}`: {"a": "b", "c": ""},
		`{"n": 1, "o": {"x": [null]}, "z": null}`: {"n": "1", "o": `{"x":[null]}`, "z": "null"},
		`[]`: nil, `no JSON`: nil,
	} {
		if got := Headers(json.RawMessage(column)); !maps.Equal(got, want) || got == nil != (want == nil) {
			t.Errorf("%s has the headers %q, want %q", column, got, want)
		}
	}
}
