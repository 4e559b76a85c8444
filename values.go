package outbox

import (
	"strconv"
	"strings"
)

// values are what a statement is given: each as an argument, or as a literal in its text.
type values struct {
	literal bool
	args    []any
}

// Between quotes of this kind nothing is special, whatever the session's standard_conforming_strings says, and no encoding that
// the session may have set has their bytes within a character.
const (
	dollarTag   = "$task"
	dollarQuote = dollarTag + "$"
)

// The server copies a literal several times. From about 16 kB on that costs more than the round trip that it saves.
const maxLiteral = 8 << 10

// valuesFor are those of a statement for one task on tx.
func valuesFor(tx Querier, task row) values {
	return values{literal: task.size() <= maxLiteral && task.quotable() && onLibPQ(tx)}
}

// quotable reports whether no text of the task has what ends a literal, or would end it together with the quote.
func (r row) quotable() bool {
	return !strings.Contains(r.taskType, dollarTag) && !strings.Contains(r.payload, dollarTag) &&
		!strings.Contains(r.headerJSON, dollarTag) && !strings.Contains(r.orderingKey, dollarTag)
}

// add adds a text and returns what stands for it in the statement.
func (v *values) add(text string) string {
	if v.literal {
		return dollarQuote + text + dollarQuote
	}
	v.args = append(v.args, text)
	return "$" + strconv.Itoa(len(v.args))
}
