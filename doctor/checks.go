package doctor

// checks are all checks, in the order in which they are shown. Only Check refers to them.
var checks = []check{
	{look: checkVersion, passed: []passed{{"schema-version", "the schema is of the version that this program needs"}}},
	{look: checkObjects, passed: []passed{
		{"schema-objects", "all tables, views, sequences and functions are there"},
		{"indexes", "all indexes are there and valid"},
		{"triggers", "all triggers are there and enabled"}}},
	{look: checkRoles, passed: []passed{{"roles",
		"the roles have the rights that this version gives them, or there are none"}}},
	{look: checkRowSecurity, passed: []passed{{"row-security", "row level security is off"}}},
	{look: checkForeignKeys, passed: []passed{{"foreign-keys", "no table of the app refers to the outbox's tables"}}},
	{look: checkCounts, passed: []passed{{"counts", "the counts are those of the rows"}}},
	{look: checkSequences, passed: []passed{{"sequences", "new ids are above those that were given"}}},
	{look: checkOrigin, passed: []passed{
		{"copy", "this is the database that the tasks were enqueued in"},
		{"environment", "a relay has named the environment, so that snapshots can be told apart"}}},
	{look: checkServer, passed: []passed{
		{"server-version", "the server's version is supported"},
		{"primary", "the server is a primary"},
		{"durability", "fsync and full_page_writes are on, and commits wait for the disk"}}},
	{look: checkSettings, bare: true, passed: []passed{{"session-settings",
		"no timeout or mode of the roles, the database or the server is in the relays' way"}}},
	{look: checkAutovacuum, passed: []passed{{"autovacuum", "it is on, with the outbox's settings for its tables"}}},
	{look: checkDeadRows, passed: []passed{{"dead-rows", "autovacuum keeps up"}}},
	{look: checkHolders, passed: []passed{
		{"held-transaction", "no session has held a transaction open for long"},
		{"prepared-transaction", "no prepared transaction is old"},
		{"replication-slot", "no slot keeps dead rows"},
		{"standby-feedback", "no standby keeps dead rows"}}},
	{look: checkLocks, passed: []passed{{"lock-wait", "no session waits for a lock on the outbox's tables"}}},
	{look: checkNotifications, passed: []passed{
		{"notification-queue", "the queue of notifications is empty, or nearly so"}}},
	{look: checkConnections, passed: []passed{{"connections", "the server has connections to give"}}},
	{look: checkTasks, passed: []passed{
		{"relays", "relays are alive, and the dead ones hold nothing"},
		{"relay-pool", "the pools of the relays are large enough, as far as it is known, and the server can " +
			"serve them"},
		{"unhandled-type", "there is a relay for each type with tasks"},
		{"paused-type", "no type with tasks is paused"},
		{"starving-type", "no type waits for longer than it should"}}},
	{look: checkMaintenance, passed: []passed{{"maintenance", "the relays do it in time"}}},
	{look: checkSchedules, passed: []passed{{"schedules", "they fire in time, and living relays have them"}}},
	{look: checkDeadLetters, passed: []passed{{"dead-letters", "there are none"}}},
	{look: checkIndexBloat, passed: []passed{{"index-bloat", "no index is much larger than its entries"}}},
}
