package relay_test

import (
	"os"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// drivers are those that a test runs on whose outcome depends on the driver: how a handler's
// misdeeds and a broken connection
// show. It is the one that OUTBOX_TEST_DRIVER names, lib/pq by default, or both with OUTBOX_TEST_LONG=1.
var drivers = func() []string {
	if os.Getenv("OUTBOX_TEST_DRIVER") == "" && relaytest.Long {
		return []string{"postgres", "pgx"}
	}
	return []string{relaytest.DriverName()}
}()

// onEachDriver runs a test on a database of its own with each driver.
func onEachDriver(t *testing.T, test func(t *testing.T, db *database)) {
	t.Helper()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			test(t, newDatabase(t, driver))
		})
	}
}
