package cluster

import (
	"errors"
	"net"
	"slices"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/watched"
	"github.com/txoutbox/outbox/internal/needs"
)

func TestATakenPortIsToldFromOtherFailures(t *testing.T) {
	needs.Long(t)
	bin, err := Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := watched.NewDir(true)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(t.Context(), dir, bin, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := c.Stop("fast"); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	go func() { // as another server would, it answers
		for {
			conn, err := taken.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	c.port = taken.Addr().(*net.TCPAddr).Port
	if err := c.run(t.Context()); !errors.Is(err, errPortTaken) {
		t.Fatalf("got %v, want %v", err, errPortTaken)
	}
	taken.Close()
	if err := c.run(t.Context()); err != nil {
		t.Fatalf("once the port is free: %v", err)
	}
}

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
