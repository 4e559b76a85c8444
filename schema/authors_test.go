package schema

import (
	"regexp"
	"strconv"
	"testing"
)

// records finds the statement with which a migration records itself.
var records = regexp.MustCompile(`INSERT INTO outbox\.migration \(version, oldest_version\) VALUES \((\d+), (\d+)\) ON CONFLICT DO NOTHING;\s*$`)

// Where a migration does not say it, no older code may run beside it. CONTRIBUTING.md has the rule.
func TestEachMigrationSaysTheOldestCodeThatMayRunBesideIt(t *testing.T) {
	for i, text := range migrations() {
		version := i + 1
		m := records.FindStringSubmatch(text)
		if m == nil {
			t.Errorf("migration %d does not end with: INSERT INTO outbox.migration (version, oldest_version) VALUES (%d, …) ON CONFLICT DO NOTHING;"+
				" CONTRIBUTING.md says which oldest_version it needs", version, version)
			continue
		}
		if oldest, err := strconv.Atoi(m[2]); m[1] != strconv.Itoa(version) || err != nil || oldest > version || oldest < 1 {
			t.Errorf("migration %d records itself as %s, and the oldest code that may run beside it as %s", version, m[1], m[2])
		}
	}
}
