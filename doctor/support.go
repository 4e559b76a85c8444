package doctor

import (
	"fmt"
	"time"
)

// lastFixes are the days of the last minor release of each major version of PostgreSQL that the
// outbox is tested with, as on postgresql.org/support/versioning and in docs/guide/production.md.
var lastFixes = map[int]string{14: "2026-11-12", 15: "2027-11-11", 16: "2028-11-09", 17: "2029-11-08", 18: "2030-11-14"}

// oldestTested and newestTested are the ends of lastFixes.
const oldestTested, newestTested = 14, 18

// serverVersion judges the server's major version; text is the whole version.
func serverVersion(major int, text string, now time.Time) (severity Severity, what, do string) {
	switch {
	case major < oldestTested:
		return Critical, fmt.Sprintf("PostgreSQL %s is too old: schema.Migrate and relays refuse it", text),
			fmt.Sprintf("use PostgreSQL %d to %d", oldestTested, newestTested)
	case major > newestTested:
		return Warning, fmt.Sprintf("PostgreSQL %s is newer than the tested versions, %d to %d", text, oldestTested, newestTested),
			"look for a version of the module github.com/txoutbox/outbox that names it; until then try each change on staging"
	}
	end, err := time.Parse(time.DateOnly, lastFixes[major])
	if err != nil {
		return Unknown, "not checked: the end of the support for PostgreSQL " + text + " is unknown", ""
	}
	if now.After(end.AddDate(0, 0, 1)) {
		tested := end.AddDate(1, 0, 0).Format("January 2006")
		return Warning,
			fmt.Sprintf("PostgreSQL %d has ended: there are no fixes for it since %s", major, end.Format("2 January 2006")),
			fmt.Sprintf("move to a newer major version; the outbox is tested with %d until %s", major, tested)
	}
	return OK, "", ""
}
