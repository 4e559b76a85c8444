package relay

import (
	"fmt"
	"testing"
	"time"
)

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
						var found []earlier
						for i := range lost {
							found = append(found, earlier{token: fmt.Sprint("lost", i), alive: -time.Duration(i) * time.Second})
						}
						for i := range undecided {
							found = append(found, earlier{token: fmt.Sprint("undecided", i), alive: alive - time.Duration(i)*time.Second})
						}
						for i := range conns { // of relays that live and of relays that died since
							found = append(found, earlier{token: fmt.Sprint("conn", i), lostConn: true, alive: time.Duration(i-5) * time.Second})
						}
						name := fmt.Sprintf("attempt %d of %d, %d runs lost, %d undecided, %d lost connections", attempt, maximum, lost, undecided, conns)
						r := &row{attempt: attempt, max: maximum}
						v, wait := r.judge(found)
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
func wrong(r *row, v verdict, wait time.Duration, lost, undecided, conns int, alive time.Duration) string {
	history := lost+undecided+conns > 0
	least, most := r.attempt+lost, r.attempt+lost+undecided // attempts begun, if all undecided relays live or none
	dead := v == deadAttempts || v == deadLostConns
	switch {
	case (v == plain || v == suspect) && most+1 > r.max:
		return "it may be started too often"
	case v == plain && history, v == suspect && !history:
		return "only tasks with a history are suspects"
	case (v == plain || v == suspect) && conns >= 10:
		return "ten lost connections are a dead letter"
	case (v == plain || v == suspect) && (r.lost != lost || len(r.undecided) != undecided || r.begun() != least+1):
		return "the runs are not counted, or their tokens not kept"
	case v == deadAttempts && least < r.max:
		return "attempts may be left"
	case v == deadLostConns && conns < 10:
		return "not ten connections were lost"
	case !dead && least >= r.max:
		return "no attempt is left"
	case !dead && conns >= 10:
		return "ten connections were lost"
	case v == postponed && undecided == 0:
		return "nothing is undecided"
	case v == postponed && undecided == 1 && lost == 0 && r.attempt+1 < r.max:
		return "one lost run does not hold a task up"
	case v == postponed && (wait <= alive || wait > alive+time.Second):
		return "it does not wait just until the heartbeats have decided"
	case v == suspect && lost+undecided >= 2 && undecided > 0:
		return "a task lost twice waits until the heartbeats have decided"
	case v != postponed && wait != 0:
		return "there is nothing to wait for"
	}
	return ""
}

func TestARunWhoseResultIsAboutToBeRecordedIsWaitedFor(t *testing.T) {
	t.Parallel()
	r := &row{attempt: 0, max: 1}
	found := []earlier{{token: "own", open: true, lostConn: true, alive: time.Second}, {token: "lost"}}
	if v, wait := r.judge(found); v != postponed || wait <= 0 || wait > time.Second {
		t.Errorf("verdict %d after %v, want it postponed for less than a second", v, wait)
	}
}
