// Package admin is for operators' tools: it reads an outbox, and has the actions that operators take
// by hand.
//
//	client, err := admin.New(db, admin.Config{Actor: "ada@example.com", Tool: "backoffice"})
//	page, err := client.DeadLetters(ctx, admin.DeadQuery{Filter: admin.DeadFilter{Type: "SEND_MAIL"}, Limit: 50})
//	done, err := client.Redrive(ctx, admin.DeadFilter{IDs: []int64{42}}, admin.Bulk{})
//	done, err = client.Redrive(ctx, admin.DeadFilter{Error: "connection refused"}, admin.Bulk{PerSecond: 100})
//
// The nouns are tasks in any state, dead letters, types, relays, schedules, samples of the counts,
// and the audit log. The actions are Cancel, RunNow, Redrive, Purge, HandBack, Reindex, Repair, and
// to pause, resume or remove. If the Client has an Actor, an action writes an entry into the audit
// log, in its own transaction.
//
// Lists are read by pages: Next of a page is After of the following one. These texts are opaque.
// They are for the list that they come from, may be shown and stored, and have no form that a
// program may read or write: each version may have another one.
//
// [Client.In] makes a client of a transaction: its actions commit with the app's own rows.
//
// Reads use an index, and cost the same with ten tasks and with ten million. Reads of dead letters
// by a field of [DeadFilter] without an index document their bounds, and [Client.Defects] reads all
// tasks. Reads work beside relays, and on a standby. [Client.Payload] and [Client.Defects] need
// further rights; all others need those of the viewer of docs/security.md, and read no payload,
// header or key. A read may send two statements: in a transaction at READ COMMITTED each sees the
// rows that are committed by then.
package admin
