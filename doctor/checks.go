package doctor

import (
	"context"
)

// checks are all checks, in the order in which they are shown. Only Check refers to them.
var checks = []check{
	{look: checkVersion, passed: []passed{{"schema-version", "the schema is of the version that this program needs"}}},
	{look: checkObjects, passed: []passed{
		{"schema-objects", "all tables, views, sequences and functions are there"},
		{"indexes", "all indexes are there and valid"},
		{"triggers", "all triggers are there and enabled"}}},
	report("roles", "the roles have the rights that this version gives them, or there are none",
		rolesSQL, (*visit).schemaName, (*visit).grants),
	{look: checkRowSecurity, passed: []passed{{"row-security", "row level security is off"}}},
	report("foreign-keys", "no table of the app refers to the outbox's tables", foreignKeysSQL, (*visit).schemaName),
	{look: checkOwn, passed: []passed{
		{"own-columns", "the tables have no columns of the app's"},
		{"own-triggers", "the tables have no triggers of the app's"}}},
	{look: checkCounts, passed: []passed{{"counts", "the counts are those of the rows"}}},
	{look: checkSequences, passed: []passed{{"sequences", "new ids are above those that were given"}}},
	{look: checkOrigin, passed: []passed{
		{"copy", "this is the database that the tasks were enqueued in"},
		{"environment", "a relay has named the environment, so that snapshots can be told apart"}}},
	report("server-version", "the server's version is supported", serverVersionSQL, (*visit).now),
	report("primary", "the server is a primary", primarySQL),
	report("durability", "fsync and full_page_writes are on, and commits wait for the disk", durabilitySQL),
	{look: checkCollations, passed: []passed{
		{"collation-version", "the library has the order of text that the database was made with"}}},
	bare(report("session-settings", "no timeout or mode of the roles, the database or the server is in the relays' way",
		settingsSQL)),
	report("autovacuum", "it is on, with the outbox's settings for its tables", autovacuumSQL, (*visit).schemaName),
	report("dead-rows", "autovacuum keeps up", deadRowsSQL, (*visit).schemaName, (*visit).deadRows),
	report("held-transaction", "no session has held a transaction open for long",
		heldTransactionSQL, (*visit).schemaName, (*visit).held),
	report("prepared-transaction", "no prepared transaction is old",
		preparedTransactionSQL, (*visit).schemaName, (*visit).held),
	report("replication-slot", "no slot keeps dead rows", replicationSlotSQL, (*visit).schemaName, (*visit).held),
	report("standby-feedback", "no standby keeps dead rows", standbyFeedbackSQL, (*visit).schemaName, (*visit).held),
	report("lock-wait", "no session waits for a lock on the outbox's tables",
		locksSQL, (*visit).schemaName, (*visit).waited),
	report("wraparound", "transaction ids are far from running out", wraparoundSQL, (*visit).schemaName, (*visit).old),
	report("notification-queue", "the queue of notifications is empty, or nearly so", notificationsSQL),
	report("connections", "the server has connections to give", connectionsSQL),
	report("relay-pool", "the pools of the relays are large enough, as far as it is known, and the server can serve them",
		poolsSQL),
	{look: checkTasks, passed: []passed{
		{"relays", "relays are alive, and the dead ones hold nothing"},
		{"unhandled-type", "there is a relay for each type with tasks"},
		{"paused-type", "no type with tasks is paused"},
		{"starving-type", "no type waits for longer than it should"}}},
	report("maintenance", "the relays do it in time", maintenanceSQL),
	report("schedules", "they fire in time, and living relays have them", schedulesSQL),
	report("future-times", "no stored time lies further ahead than it can", futureTimesSQL),
	report("dead-letters", "there are none", deadLettersSQL, (*visit).reasons),
	report("index-bloat", "no index is much larger than its entries",
		indexBloatSQL, (*visit).schemaName, (*visit).bloated),
	report("clock", "the server's clock and this process's agree", clockSQL, (*visit).now),
}

// report is a check whose findings a query returns: severity, subject, fault and remedy. fine is the
// text if there are none.
func report(name, fine, query string, args ...func(*visit) any) check {
	return check{passed: []passed{{name, fine}}, look: func(ctx context.Context, v *visit) error {
		var values []any
		for _, arg := range args {
			values = append(values, arg(v))
		}
		var severity Severity
		var subject, what, do string
		return v.each(ctx, query, values, []any{&severity, &subject, &what, &do}, func() {
			v.add(name, severity, subject, what, do)
		})
	}}
}

// bare is a check that runs without the settings of the others.
func bare(c check) check {
	c.bare = true
	return c
}

func (v *visit) schemaName() any { return v.schema }
func (v *visit) held() any       { return v.settings.held.Microseconds() }
func (v *visit) waited() any     { return v.settings.waited.Microseconds() }
func (v *visit) deadRows() any   { return v.settings.dead }
func (v *visit) bloated() any    { return v.settings.bloated }
func (v *visit) old() any        { return v.settings.old }
func (v *visit) now() any        { return v.settings.now() }
