//go:build unix

package app

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestALedgerTellsWhatBecameOfEachTask(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{
		Intend(dir, "p0", 1, "TX:a", "BATCH:b"), End(dir, "p0", 1, Acked), Intend(dir, "p0", 2, "TX:c"),
		End(dir, "p0", 2, RolledBack), Intend(dir, "p0", 3, "TX:d"), Intend(dir, "p1", 3, "TX:e"), End(dir, "p1", 3, Acked),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	all, err := ReadLedgers(dir)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b Told) int { return strings.Compare(a.K, b.K) })
	want := []Told{{"a", "TX", Acked}, {"b", "BATCH", Acked}, {"c", "TX", RolledBack}, {"d", "TX", Unknown},
		{"e", "TX", Acked}}
	if !reflect.DeepEqual(all, want) {
		t.Errorf("got %v, want %v", all, want)
	}
}
