package proxy

import "strings"

// How is what a trap does to the connection that it catches.
type How int

const (
	// LoseRequest cuts the connection before the message reaches the server.
	LoseRequest How = iota
	// LoseReply passes the message on and cuts the connection in place of the reply.
	LoseReply
	// LoseBoth passes the message on and cuts the connection at once, whatever becomes of it.
	LoseBoth
	// SilenceRequest silences the connection before the message reaches the server.
	SilenceRequest
	// SilenceReply passes the message on and silences the connection in place of the reply.
	SilenceReply
)

// Trap catches a connection at a message.
type Trap struct {
	// Catches is asked for each statement of a client: its text, and those of the statements before
	// it since the last COMMIT or ROLLBACK.
	Catches func(statement, before string) bool
	How     How
	// Then, unless nil, is called when the trap has caught a connection: before the message is
	// passed on or, for LoseReply and SilenceReply, when the server has replied.
	Then func()
}

// Commit catches a COMMIT of a transaction that has a statement with the text.
func Commit(of string) func(statement, before string) bool {
	return func(statement, before string) bool {
		return lastOf(statement) == "commit" && strings.Contains(before+statement, of)
	}
}

// Statement catches a statement with the text.
func Statement(text string) func(statement, before string) bool {
	return func(statement, _ string) bool { return strings.Contains(statement, text) }
}

// ends reports whether a message ends a transaction.
func ends(statement string) bool {
	last := lastOf(statement)
	return last == "commit" || last == "rollback"
}

// lastOf is the last statement of a message, in lower case.
func lastOf(statement string) string {
	statement = strings.TrimRight(statement, "; \n")
	return strings.ToLower(strings.TrimSpace(statement[strings.LastIndexByte(statement, ';')+1:]))
}
