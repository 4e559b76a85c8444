package schema

import (
	"fmt"
	"regexp"
	"strings"
)

var validName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

func checkName(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("schema: invalid schema name %q: use a lower-case name like outbox, letters, digits and _ only, at most 63 bytes", name)
	}
	if strings.HasPrefix(name, "pg_") {
		return fmt.Errorf("schema: invalid schema name %q: PostgreSQL keeps names with pg_ to itself", name)
	}
	return nil
}

// quote makes an identifier of a valid name, so that a reserved word can be one.
func quote(name string) string { return `"` + name + `"` }

// SQL is all migrations as one script for a schema of the given name, to be applied in one transaction:
// write it to a file and run psql -v ON_ERROR_STOP=1 -1 -f, or give the file to goose. For the name
// "outbox" and one version at a time, see [Files].
func SQL(name string) (string, error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	const up = "-- +goose Up\n"
	var all strings.Builder
	all.WriteString(up) // goose wants it once
	for _, text := range migrations() {
		all.WriteString(strings.ReplaceAll(rename(text, name), up, ""))
	}
	return all.String(), nil
}

// ownName finds the schema's name where the scripts use it: before a dot, as a literal, after SCHEMA, and as the
// beginning of a role's. They use it nowhere else but in comments.
var ownName = regexp.MustCompile(`'outbox'|\boutbox\.|\bSCHEMA outbox\b|\boutbox_(?:owner|enqueuer|worker|viewer|operator)\b`)

// rename puts another schema's name into a script.
func rename(text, name string) string {
	if name == defaultSchema {
		return text
	}
	return ownName.ReplaceAllStringFunc(text, func(s string) string {
		if suffix, found := strings.CutPrefix(s, "outbox_"); found {
			return quote(name + "_" + suffix)
		}
		return strings.Replace(s, "outbox", quote(name), 1)
	})
}
