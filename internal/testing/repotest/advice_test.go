package repotest

import (
	"go/constant"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// destroying finds an advice that begins with what cannot be undone: in a text of an error or a
// finding, or in one that SQL makes.
var destroying = regexp.MustCompile(`(?:^|[:;] |')(` +
	`(?i:drop|delete|truncate|discard|purge|remove|wipe|erase|empty) (?:the|it|its|one|them|all|that|this|those|each|every|a)\b[^"'\n]*` +
	`|(?:DROP (?:SCHEMA|TABLE|COLUMN|INDEX|DATABASE|OWNED)|DELETE FROM|TRUNCATE|ROLLBACK PREPARED)\b[^"'\n]*` +
	`|SELECT pg_(?:terminate_backend|drop_replication_slot)\b[^"'\n]*)`)

// harmless are those that lose nothing, and what is no advice.
var harmless = map[string]string{
	"DROP INDEX CONCURRENTLY ":           "an invalid index of REINDEX that no session builds: no statement uses it",
	"DROP INDEX CONCURRENTLY IF EXISTS ": "what admin.Client.Reindex does with it",
	"drop the invalid index %s: %w":      "an error of that",
}

// adviceToDestroy are the advices of a text that begin with what cannot be undone.
func adviceToDestroy(text string) (found []string) {
	if start := strings.TrimSpace(text); strings.HasPrefix(start, "/*") || strings.HasPrefix(start, "--") { // a statement: the texts in it
		text = strings.Join(sqlText.FindAllString(text, -1), "\n")
	}
	for _, m := range destroying.FindAllStringSubmatch(text, -1) {
		if harmless[m[1]] == "" {
			found = append(found, m[1])
		}
	}
	return found
}

var sqlText = regexp.MustCompile(`'(?:[^']|'')*'`)

// A message asks for what cannot be undone only after a way that loses nothing.
func TestNoMessageAdvisesToDestroyFirst(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		if strings.Contains(p.ImportPath, "/internal/") && !strings.Contains(p.ImportPath, "/internal/origin") {
			continue
		}
		for e, tv := range p.info.Types {
			if tv.Value != nil && tv.Value.Kind() == constant.String {
				for _, advice := range adviceToDestroy(constant.StringVal(tv.Value)) {
					t.Errorf("%s: %s", fset.Position(e.Pos()), advice)
				}
			}
		}
	}
	files, err := filepath.Glob("schema/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		for _, advice := range adviceToDestroy("--" + read(t, name)) {
			t.Errorf("%s: %s", name, advice)
		}
	}
}

func TestAdviceToDestroyIsFound(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"it cannot be migrated: drop the schema, with the tasks in it",
		"DELETE FROM outbox.task",
		"-- a check\nSELECT 'the slot is old', format('SELECT pg_drop_replication_slot(%L)', name)",
		"-- a migration\nRAISE EXCEPTION 'no' USING HINT = 'Drop the schema, with the tasks in it.'",
	} {
		if len(adviceToDestroy(text)) != 1 {
			t.Errorf("found %q in %s", adviceToDestroy(text), text)
		}
	}
	for _, text := range []string{
		"rename it, or drop the schema", "REINDEX INDEX i; or, if nobody needs it, DROP INDEX i",
		"/* purge */\nDELETE FROM outbox.task WHERE state = 'dead'",
	} {
		if found := adviceToDestroy(text); len(found) > 0 {
			t.Errorf("found %q in %s", found, text)
		}
	}
}
