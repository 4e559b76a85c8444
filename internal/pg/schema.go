package pg

import "strings"

// Schema is the name of the outbox's schema, one that schemaname.Valid takes.
type Schema string

// SQL puts the name into a statement, which is written for the schema "outbox". Statements name the
// schema everywhere, as a pooler may drop search_path.
func (s Schema) SQL(query string) string {
	if s == "outbox" {
		return query
	}
	return strings.ReplaceAll(query, "outbox.", `"`+string(s)+`".`)
}
