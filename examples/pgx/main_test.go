package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestATransactionOfPgxpoolEnqueues(t *testing.T) {
	var out bytes.Buffer
	relaytest.Must(run(t.Context(), pgtest.Database(t), &out))
	if got, want := out.String(), "order 1 is placed\nmail for order 1\n"; got != want {
		t.Errorf("it printed %q, want %q", got, want)
	}
}
