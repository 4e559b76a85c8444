package doctor

const viewersOn = "USAGE on the schema and SELECT, as viewers have it, on its "

// checks are all checks, in the order in which they are shown. Only Check refers to them.
var checks = []check{
	{look: checkVersion, needs: "USAGE on the schema and SELECT on its table migration", passed: []passed{
		{"schema-version", "the schema is of the version that this program needs"}}},
	{look: checkObjects, needs: "USAGE on the schema and SELECT on its table migration", passed: []passed{
		{"schema-objects", "all tables, views, sequences and functions are there"},
		{"indexes", "all indexes are there and valid"},
		{"triggers", "all triggers are there and enabled"}}},
	{look: checkRoles, needs: "USAGE on the schema", passed: []passed{
		{"roles", "the roles have the rights that this version gives them, or there are none"}}},
	{look: checkRowSecurity, needs: "USAGE on the schema", passed: []passed{
		{"row-security", "row level security hides rows from no role that may run a relay"}}},
	{look: checkForeignKeys, passed: []passed{{"foreign-keys", "no table of the app refers to the outbox's tables"}}},
	{look: checkOwnColumns, needs: "USAGE on the schema and SELECT on its table migration", passed: []passed{
		{"own-columns", "the tables have no columns of the app's"}}},
	{look: checkOwnTriggers, passed: []passed{{"own-triggers", "the tables have no triggers of the app's"}}},
	{look: checkCounts, needs: viewersOn + "tables task, dead_task, counter and counter_log", passed: []passed{
		{"counts", "the counts are those of the rows"}}},
	{look: checkSequences, needs: viewersOn + "tables and sequences", passed: []passed{
		{"sequences", "new ids are above those that were given"}}},
	{look: checkOrigin, needs: "USAGE on the schema and EXECUTE on its function origin_state", passed: []passed{
		{"copy", "this is the database that the tasks were enqueued in"},
		{"environment", "a relay has named the environment, so that snapshots can be told apart"}}},
	{look: checkServer, passed: []passed{
		{"server-version", "the server's version is supported"},
		{"encoding", "the database's encoding is UTF8"},
		{"primary", "the server is a primary"},
		{"durability", "fsync and full_page_writes are on, and commits wait for the disk"}}},
	{look: checkCollations, passed: []passed{
		{"collation-version", "the library has the order of text that the database and the outbox's indexes were made with"}}},
	{look: checkSettings, bare: true, needs: "USAGE on the schema", passed: []passed{
		{"session-settings", "no timeout or mode of the roles, the database or the server is in the relays' way"}}},
	{look: checkAutovacuum, passed: []passed{{"autovacuum", "it is on, with the outbox's settings for its tables"}}},
	{look: checkDeadRows, passed: []passed{{"dead-rows", "autovacuum keeps up"}}},
	{look: checkHolders, needs: "pg_monitor", passed: []passed{
		{"held-transaction", "no session has held a transaction open for long"},
		{"prepared-transaction", "no prepared transaction is old"},
		{"replication-slot", "no slot keeps dead rows"},
		{"standby-feedback", "no standby keeps dead rows"}}},
	{look: checkLocks, passed: []passed{{"lock-wait",
		"no session locks the outbox's tables, or waits for a lock on them"}}},
	{look: checkWraparound, passed: []passed{{"wraparound", "transaction ids are far from running out"}}},
	{look: checkNotifications, passed: []passed{{"notification-queue",
		"the queue of notifications is empty, or nearly so"}}},
	{look: checkConnections, passed: []passed{{"connections", "the server has connections to give"}}},
	{look: checkTasks, needs: viewersOn + "tables", passed: []passed{
		{"relays", "relays are alive, and the dead ones hold nothing"},
		{"relay-pool", "the pools of the relays are large enough, as far as it is known, and the server can serve them"},
		{"unhandled-type", "there is a relay for each type with tasks"},
		{"paused-type", "no type with tasks is paused"},
		{"starving-type", "no type waits for longer than it should"}}},
	{look: checkMaintenance, needs: "USAGE on the schema and SELECT on its tables maintenance and relay", passed: []passed{
		{"maintenance", "the relays do it in time"}}},
	{look: checkSchedules, needs: viewersOn + "table schedule and its view unowned_schedule", passed: []passed{
		{"schedules", "they fire in time, and living relays have them"}}},
	{look: checkFutureTimes, needs: viewersOn + "tables relay, maintenance and task", passed: []passed{
		{"future-times", "no stored time lies further ahead than it can"}}},
	{look: checkDeadLetters, needs: viewersOn + "tables dead_task, counter and counter_log", passed: []passed{
		{"dead-letters", "there are none"}}},
	{look: checkIndexBloat, passed: []passed{{"index-bloat", "no index is much larger than its entries"}}},
	{look: checkClock, passed: []passed{{"clock", "the server's clock and this process's agree"}}},
}
