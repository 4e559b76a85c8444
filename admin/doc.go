// Package admin is for operators' tools: it reads what is in an outbox, and changes what an
// operator may change by hand.
//
//	client, err := admin.New(db, admin.Options{Actor: "ada@example.com", Tool: "backoffice"})
//	dead, next, err := client.DeadLetters(ctx, admin.Filter{Type: "SEND_MAIL"}, admin.Page{Limit: 50})
//	taken, next, err := client.Redrive(ctx, admin.Filter{IDs: []int64{42}}, admin.Page{})
//	redriven, skipped, err := client.EveryPage(ctx, client.Redrive, admin.Filter{Error: "connection refused"}, 100)
//
// The nouns are tasks wherever they are, dead letters, types, relays, schedules, samples of the
// counts, and the audit log. The actions are Cancel, RunNow, Redrive, Purge, HandBack, Reindex,
// Repair, and to pause, resume or remove. An action of a Client with an Actor writes an entry into
// the audit log, in the transaction of the action.
//
// [Client.In] makes a client of a transaction: its actions commit with the app's own rows.
//
// Reads go through an index, and cost the same with ten tasks and with ten million; those of dead
// letters by error or reason say how they are bounded, and [Client.Defects] reads all tasks. They
// work beside relays at work and on a standby. All but [Client.Secrets] and [Client.Defects] need
// no more rights than the viewer of docs/security.md has, and read no payload, header or key. A
// read may send two statements: each sees the rows that are committed by then, unless they are in a
// transaction above READ COMMITTED.
package admin
