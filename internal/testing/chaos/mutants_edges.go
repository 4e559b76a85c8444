//go:build unix

package main

import "time"

// edgeMutants are noticed by a run of this program: faults of a part that are taken for those of the
// whole, or for ones that do not pass.
var edgeMutants = []mutant{
	{name: "sign-in-twice", help: "the publisher closes for good after two refused logins", edits: []edit{
		{"", "nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),", "nats.MaxReconnects(-1),"},
		{"", "if p.dial != nil && p.link.js.Conn().IsClosed() {", "if false {"},
	}, run: chaosRun{"password", 15 * time.Second, 3 * time.Second, []string{"lost tasks"}}},
	{name: "full-for-good", help: "an event for a stream that is full is a dead letter", edits: []edit{
		{"", "return forward.TargetUnavailable(err, 0)\n	case accountLimit",
			"return forward.Permanent(err)\n	case accountLimit"},
	}, run: chaosRun{"target", 15 * time.Second, 2 * time.Second, []string{"dead letters that should not be"}}},
	{name: "waiting-beat", help: "a heartbeat's commit waits for a standby that is away", edits: []edit{
		{"", "FROM outbox.identity), ''), ` + pg.CommitAsync", "FROM outbox.identity), ''), ''`"},
	}, run: chaosRun{"standby", 30 * time.Second, 3 * time.Second, []string{"attempts that nothing",
		"calls that nothing"}}},
	{name: "trusted-wake-up",
		help: "a type rests when a claim fails that only a wake-up asked for, whose numbers nobody checks", edits: []edit{
			{"", "strconv.ParseInt(words[0], 10, 16)", "strconv.ParseInt(words[0], 10, 64)"},
			{"", "	claim.Named = true\n", ""},
		}, run: chaosRun{"forged", 15 * time.Second, 2 * time.Second, []string{"errors that relays"}}},
	{name: "first-in-line", help: "a task that cannot be read stays where it is, before all others of its type",
		edits: []edit{
			{"", "	if find() == 0 {\n", "	if true {\n"},
		}, run: chaosRun{"unreadable", 10 * time.Second, 2 * time.Second, []string{"unreadable tasks"}}},
	{name: "known-by-file", help: "a database is known by the file of a table, which maintenance replaces",
		edits: []edit{
			{"outbox.this_database", "table_oid := 'outbox.origin'::regclass;",
				"table_oid := pg_relation_filenode('outbox.origin');"},
		}, run: chaosRun{"rewrite", 20 * time.Second, time.Second, []string{"tasks that are left"}}},
	{name: "no-comparison", help: "a relay never compares the leases of its memory with those of the tables",
		edits: []edit{
			{"", "	if since.Equal(c.since) && time.Since(c.at) < upkeep.ReapInterval {\n", "	if true {\n"},
		}, run: chaosRun{"restore", 15 * time.Second, time.Second, []string{"tasks that are left"}}},
	{name: "no-guard", help: "a relay works with the settings that its sessions begin with",
		edits: []edit{
			{"internal/pg", "p.guarded.Store(true)", "p.guarded.Store(false)"},
		}, run: chaosRun{"settings", 5 * time.Second, time.Second, []string{"relays that stand still"}}},
	{name: "believes-next", help: "a firing that a clock has put off by a day stays there", edits: []edit{
		{"", "	if time.Duration(next-one.now)*time.Microsecond < farAhead {\n", "	if true {\n"},
	}, run: chaosRun{"ahead", 15 * time.Second, 5 * time.Second, []string{"schedules that stopped"}}},
	{name: "blames-lock", help: "a lock on the journal that outlasts the end of a claim is the handler's failure",
		edits: []edit{
			{"", `return pgerr.Code(gone) == "3B001", err`, `return gone == nil && false, err`},
		}, run: chaosRun{"lock", 40 * time.Second, 2 * time.Second, []string{"attempts that"}}},
}
