package store

import (
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
)

// A payload, a header or an error may have the name of the schema that statements are written for.
func TestTheHistoryOfATaskKeepsItsText(t *testing.T) {
	t.Parallel()
	const said = `{"error": "outbox.Send panicked"}`
	s := &Store{Schema: pg.Schema("jobs")}
	text := said
	r := &Row{ID: 7, Lost: 1}
	r.TaskType, r.Payload, r.headers, r.timeline = "TX", said, &text, &text
	statements := s.KeepTasks(time.Hour, []*Row{r})
	if len(statements) != 1 || strings.Count(statements[0], said) != 3 {
		t.Errorf("want %s three times in %q", said, statements)
	}
	if own := strings.Count(statements[0], `outbox.`) - 3; own != 0 {
		t.Errorf("%d names are of another schema in %q", own, statements)
	}
}
