package cluster

import (
	"slices"
	"testing"
)

func TestNewestBinariesComeFirst(t *testing.T) {
	want := []string{
		"/usr/lib/postgresql/17/bin",
		"/opt/homebrew/opt/postgresql@16/bin",
		"/usr/lib/postgresql/15/bin",
		"/usr/pgsql-15/bin",
		"/Applications/Postgres.app/Contents/Versions/9.6/bin",
		"/Applications/Postgres.app/Contents/Versions/latest/bin",
	}
	got := newestFirst([]string{want[2], want[5], want[3], want[0], want[4], want[1]})
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
