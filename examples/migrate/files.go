package main

import (
	"io/fs"
	"strings"
)

// upFiles are the .sql files of a file system with the names that golang-migrate knows:
// 00019_relays.sql is 00019_relays.up.sql. There are no down files, as the outbox's schema has no
// way back.
//
// golang-migrate sends a file as one query, which PostgreSQL runs as one transaction: what fails
// leaves nothing. (So do not set MultiStatementEnabled, which cuts files at semicolons, those in
// functions included.) It marks the version as dirty all the same; once the reason is gone,
// Migrate.Force with the version before it makes the next Up try again.
type upFiles struct{ files fs.FS }

func (u upFiles) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(u.files, name)
	out := entries[:0]
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".sql") {
			out = append(out, upEntry{e})
		}
	}
	return out, err
}

func (u upFiles) Open(name string) (fs.File, error) {
	if original, found := strings.CutSuffix(name, ".up.sql"); found {
		name = original + ".sql"
	}
	return u.files.Open(name)
}

type upEntry struct{ fs.DirEntry }

func (e upEntry) Name() string { return strings.TrimSuffix(e.DirEntry.Name(), ".sql") + ".up.sql" }
