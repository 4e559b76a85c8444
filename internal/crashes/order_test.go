package crashes_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// testOrderUnderKills kills relays at random while tasks of each kind fail at random.
// With OUTBOX_TEST_TIMING=1 it also fails if the tasks take over twice as long as without keys.
func testOrderUnderKills(t *testing.T, db *relaytest.Database) {
	const keys, each, relays, kills = 1000, 100, 8, 40
	db.CreateRuns(t)
	work := func(t *testing.T, ordered bool) (took time.Duration) {
		db.Do(t, `INSERT INTO outbox.task (task_type, ordering_key, payload)
			SELECT ($1::text[])[1 + key % 3], CASE WHEN $4 THEN key END, jsonb_build_object('Fail', (random() * 0.55)::int)
			  FROM generate_series(1, $3::int) n CROSS JOIN generate_series(1, $2::int) key`, pq.Array(relaytest.OrderedTypes), keys, each, ordered)
		begun := time.Now()
		f := &fleet{DB: db, Program: "ordered", Workers: 6, Restart: true, Hasten: true}
		f.Start(t, relays)
		for kill := range kills {
			relaytest.Eventually(t, time.Minute, "the relays go on", func() bool {
				return db.Int(t, `SELECT count(*) FROM run`) >= kill*keys*each/(kills+1) && len(f.Processes()) > 0
			})
			alive := f.Processes()
			alive[rand.IntN(len(alive))].Kill9()
		}
		db.Emptied(t, 10*time.Minute)
		t.Logf("ordered %t: %d tasks in %v", ordered, keys*each, time.Since(begun).Round(time.Millisecond))
		return time.Since(begun)
	}
	var unordered time.Duration
	if relaytest.Timing {
		t.Run("unordered", func(t *testing.T) { unordered = work(t, false) }) // its relays end with it
		db.Do(t, `TRUNCATE run`)
	}
	took := work(t, true)
	db.InOrder(t, keys*each)
	if relaytest.Timing && took > 2*unordered {
		t.Errorf("it took %v, and %v without keys", took, unordered)
	}
}
