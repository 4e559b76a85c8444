// Package schemaname has the rule for the name of the outbox's PostgreSQL schema.
package schemaname

import "strings"

// Default is the schema where an app names none.
const Default = "outbox"

// Rule says in an error what [Valid] takes.
const Rule = "use a lower-case name like outbox: letters, digits and _ only, no digit and no pg_ first, at most 63 bytes"

// Valid reports whether name can be the outbox's schema: lower-case letters, digits and
// underscores, not starting with a digit or with "pg_", which PostgreSQL keeps for itself; at most
// 63 bytes. So each valid name is safe in SQL between double quotes.
func Valid(name string) bool {
	if name == "" || len(name) > 63 || strings.HasPrefix(name, "pg_") {
		return false
	}
	for i, c := range []byte(name) {
		if c != '_' && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return true
}
