package store

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"
	"time"
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

func TestAnErrorInTheTimelineIsCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	const most = maxEventError
	for text, want := range map[string]int{
		"": 0, strings.Repeat("x", most): most, strings.Repeat("x", most+1): most,
		strings.Repeat("x", most-1) + "é": most - 1, strings.Repeat("x", most-2) + "é": most,
		strings.Repeat("x", most-2) + "€": most - 2,
	} {
		if got := cut(text); len(got) != want || !strings.HasPrefix(text, got) {
			t.Errorf("of %d bytes %d stay, want %d", len(text), len(got), want)
		}
	}
}

func TestATimelineSaysWhichAttemptsFailedAndHowManyWereLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		events   string
		attempts string // with the present payload
		lost     int
	}{
		{"", "", 0},
		{"no JSON", "", 0},
		{"lost", "lost", 1},
		{"failed lost lost", "failed lost lost", 2},
		{"lost lost failed", "lost lost failed", 0},
		{"lost failed lost", "lost failed lost", 1},
		{"failed replaced lease_lost", "lease_lost", 0},
		{"failed dead redriven throttled lost", "failed lost", 1},
	} {
		timeline := "no JSON"
		if c.events != "no JSON" {
			timeline = `[{"event": "` + strings.ReplaceAll(c.events, " ", `"}, {"event": "`) + `"}]`
		}
		r := &Row{}
		if c.events != "" {
			r.read = &columns{Timeline: json.RawMessage(timeline)}
		}
		var attempts []string
		for _, a := range attemptErrors(r.uses().Timeline) {
			attempts = append(attempts, a.Error)
		}
		got, lost := strings.Join(attempts, " "), r.lostInARow()
		if got != c.attempts || lost != c.lost {
			t.Errorf("%s: attempts %q, %d lost in a row, want %q, %d", c.events, got, lost, c.attempts, c.lost)
		}
	}
}

// TestSuspectsAreJudgedWithinTheirLimits tries every history of up to three lost, three undecided and eleven
// connection-losing runs against what must hold whatever becomes of the relays that are undecided.
func TestSuspectsAreJudgedWithinTheirLimits(t *testing.T) {
	t.Parallel()
	const alive = 7 * time.Second
	for maximum := 1; maximum <= 5; maximum++ {
		for attempt := 0; attempt <= maximum+1; attempt++ {
			for lost := range 4 {
				for undecided := range 4 {
					for _, conns := range []int{0, 1, 9, 10, 11} {
						var found []Earlier
						for i := range lost {
							found = append(found, Earlier{Token: fmt.Sprint("lost", i), alive: -time.Duration(i) * time.Second})
						}
						for i := range undecided {
							found = append(found, Earlier{Token: fmt.Sprint("undecided", i), alive: alive - time.Duration(i)*time.Second})
						}
						for i := range conns { // of relays that live and of relays that died since
							found = append(found, Earlier{Token: fmt.Sprint("conn", i), LostConn: true, alive: time.Duration(i-5) * time.Second})
						}
						name := fmt.Sprintf("attempt %d of %d, %d runs lost, %d undecided, %d lost connections", attempt, maximum, lost, undecided, conns)
						r := &Row{Attempt: attempt, Max: maximum}
						v, wait := r.Judge(found)
						if err := wrong(r, v, wait, lost, undecided, conns, alive); err != "" {
							t.Errorf("%s: verdict %d after %v: %s", name, v, wait, err)
						}
					}
				}
			}
		}
	}
}

// wrong is what is wrong with a verdict.
func wrong(r *Row, v Judgement, wait time.Duration, lost, undecided, conns int, alive time.Duration) string {
	history := lost+undecided+conns > 0
	least, most := r.Attempt+lost, r.Attempt+lost+undecided // attempts begun, if all undecided relays live or none
	dead := v == DeadAttempts || v == DeadLostConns
	switch {
	case (v == Fresh || v == Suspect) && most+1 > r.Max:
		return "it may be started too often"
	case v == Fresh && history, v == Suspect && !history:
		return "only tasks with a history are suspects"
	case (v == Fresh || v == Suspect) && conns >= 10:
		return "ten lost connections are a dead letter"
	case (v == Fresh || v == Suspect) && (r.Lost != lost || len(r.Undecided) != undecided || r.Begun() != least+1):
		return "the runs are not counted, or their tokens not kept"
	case v == DeadAttempts && least < r.Max:
		return "attempts may be left"
	case v == DeadLostConns && conns < 10:
		return "not ten connections were lost"
	case !dead && least >= r.Max:
		return "no attempt is left"
	case !dead && conns >= 10:
		return "ten connections were lost"
	case v == Postponed && undecided == 0:
		return "nothing is undecided"
	case v == Postponed && undecided == 1 && lost == 0 && r.Attempt+1 < r.Max:
		return "one lost run does not hold a task up"
	case v == Postponed && (wait <= alive || wait > alive+time.Second):
		return "it does not wait just until the heartbeats have decided"
	case v == Suspect && lost+undecided >= 2 && undecided > 0:
		return "a task lost twice waits until the heartbeats have decided"
	case v != Postponed && wait != 0:
		return "there is nothing to wait for"
	}
	return ""
}

// TestATaskPastItsExpiryMustHaveBegunToRun tries one earlier run of each kind.
func TestATaskPastItsExpiryMustHaveBegunToRun(t *testing.T) {
	t.Parallel()
	of := func(attempt int, e Earlier) Judgement {
		r := &Row{Attempt: attempt, Max: 9, read: &columns{PastExpiry: true}}
		v, _ := r.Judge([]Earlier{e})
		return v
	}
	undecided := Earlier{Token: "undecided", alive: time.Second}
	if v := of(0, undecided); v != Postponed {
		t.Errorf("verdict %d, want it postponed: its earlier run may have begun nothing", v)
	}
	if v := of(1, undecided); v != Suspect {
		t.Errorf("verdict %d, want it run: an attempt is counted", v)
	}
	if v := of(0, Earlier{Token: "lost", alive: -time.Second}); v != Suspect {
		t.Errorf("verdict %d, want it run: the lost run had begun", v)
	}
	if v := of(0, Earlier{Token: "conn", LostConn: true, alive: time.Second}); v != Suspect {
		t.Errorf("verdict %d, want it run: the run that lost its connection had begun", v)
	}
}

func TestARunWhoseResultIsAboutToBeRecordedIsWaitedFor(t *testing.T) {
	t.Parallel()
	r := &Row{Attempt: 0, Max: 1}
	found := []Earlier{{Token: "own", open: true, LostConn: true, alive: time.Second}, {Token: "lost"}}
	if v, wait := r.Judge(found); v != Postponed || wait <= 0 || wait > time.Second {
		t.Errorf("verdict %d after %v, want it postponed for less than a second", v, wait)
	}
}
