package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestBothKindsOfTransactionEnqueue(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), pgtest.Database(t), &out); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "orders 1 and 2 are placed\nmail for order 1\nmail for order 2\n"; got != want {
		t.Errorf("it printed %q, want %q", got, want)
	}
}
