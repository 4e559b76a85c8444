//go:build unix

package app

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestALedgerTellsWhatBecameOfEachTask(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.ledger")
	l, err := OpenLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		l.Intend(1, "TX:a", "BATCH:b"), l.End(1, Acked), l.Intend(2, "TX:c"), l.End(2, RolledBack), l.Intend(3, "TX:d"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	all, err := ReadLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b Told) int { return strings.Compare(a.K, b.K) })
	want := []Told{{"a", "TX", Acked}, {"b", "BATCH", Acked}, {"c", "TX", RolledBack}, {"d", "TX", Unknown}}
	if !reflect.DeepEqual(all, want) {
		t.Errorf("got %v, want %v", all, want)
	}
}
