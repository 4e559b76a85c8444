// Package settings has the tests of the outbox in databases that are not set up as PostgreSQL sets
// them up: other settings of sessions, other collations. They call all of the library.
package settings
