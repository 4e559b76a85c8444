package schema

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/txoutbox/outbox/internal/schemaname"
)

// SchemaOption is the option [Schema]: an [Option], and the only one of functions that take no other.
type SchemaOption struct{ name string }

// Schema names the PostgreSQL schema of the outbox. Without it that is "outbox". A name is 1 to 63
// lower-case letters, digits and _, and begins with neither a digit nor pg_. A reserved word works.
func Schema(name string) SchemaOption { return SchemaOption{name} }

// nameOf is the schema that the options name.
func nameOf(opts []SchemaOption) (string, error) {
	name := schemaname.Default
	for _, o := range opts {
		name = o.name
	}
	return name, checkName(name)
}

func checkName(name string) error {
	if !schemaname.Valid(name) {
		return fmt.Errorf("schema: invalid schema name %q: %s", name, schemaname.Rule)
	}
	return nil
}

const (
	maxIdentifier = 63          // bytes; PostgreSQL cuts what is longer
	longestSuffix = "_enqueuer" // of a role's name
)

// checkRoles refuses a valid name that is too long for those of the roles.
func checkRoles(name string) error {
	if n := len(name) + len(longestSuffix); n > maxIdentifier {
		return fmt.Errorf("schema: the schema name %q is too long for roles: %s%s has %d bytes, PostgreSQL takes %d", name, name, longestSuffix, n, maxIdentifier)
	}
	return nil
}

// quote makes an identifier of a valid name, so that a reserved word can be one.
func quote(name string) string { return `"` + name + `"` }

// ownName finds the schema's name where the scripts use it: before a dot, as a literal, after
// SCHEMA, and as the beginning of a role's. They use it nowhere else but in comments.
var ownName = regexp.MustCompile(`'outbox'|\boutbox\.|\bSCHEMA outbox\b|\boutbox_(?:owner|enqueuer|worker|viewer|operator)\b`)

// rename puts another schema's name into a script.
func rename(text, name string) string {
	if name == schemaname.Default {
		return text
	}
	return ownName.ReplaceAllStringFunc(text, func(s string) string {
		if suffix, found := strings.CutPrefix(s, "outbox_"); found {
			return quote(name + "_" + suffix)
		}
		return strings.Replace(s, "outbox", quote(name), 1)
	})
}
