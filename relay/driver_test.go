package relay_test

import (
	"os"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// drivers are those of database/sql that the relay works with: how a handler's misdeeds and a broken connection show depends
// on them. It is the one that OUTBOX_TEST_DRIVER names; else both, but under the race detector, which says the same with either
// and is slow, lib/pq alone.
var drivers = func() []string {
	if os.Getenv("OUTBOX_TEST_DRIVER") == "" && !relaytest.RaceDetector {
		return []string{"postgres", "pgx"}
	}
	return []string{relaytest.DriverName()}
}()

// onEachDriver runs a test on a database of its own with each driver.
func onEachDriver(t *testing.T, test func(t *testing.T, db *database)) {
	t.Helper()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			test(t, newDatabase(t, driver))
		})
	}
}
