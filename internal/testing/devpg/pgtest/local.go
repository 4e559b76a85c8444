package pgtest

import (
	"errors"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg"
	"github.com/txoutbox/outbox/internal/testing/devpg/cluster"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

// Local returns a server of the test's own, with the given settings, that its Stop and Start work
// on. It is closed after the test. It needs server programs, installed or embedded, whatever kind
// of server the other tests use; without them the test fails.
func Local(t testing.TB, with map[string]string) *devpg.Server {
	t.Helper()
	s, err := devpg.Open(t.Context(), t.Logf, devpg.WithLocal(), devpg.WithMemory(), settings(with))
	return closed(t, s, err)
}

// Standby returns a hot standby of the server, which is one of Local's, and closes it after the
// test. The test is skipped where the server's programs cannot make one.
func Standby(t testing.TB, of *devpg.Server) *devpg.Server {
	t.Helper()
	s, err := of.Standby(t.Context())
	if errors.Is(err, cluster.ErrNoBackup) {
		needs.Missing(t, "pg_basebackup beside the server's programs", "postgresql-client")
	}
	return closed(t, s, err)
}

// Upgraded stops the server, which is one of Local's, and returns what pg_upgrade makes of it: of
// the same version, with another system identifier. It is closed after the test, which is skipped
// where the server's programs have no pg_upgrade.
func Upgraded(t testing.TB, from *devpg.Server) *devpg.Server {
	t.Helper()
	s, err := from.Upgraded(t.Context())
	if errors.Is(err, cluster.ErrNoUpgrade) {
		needs.Missing(t, "pg_upgrade beside the server's programs", "postgresql")
	}
	return closed(t, s, err)
}

// closed closes the server after the test, unless it could not be opened.
func closed(t testing.TB, s *devpg.Server, err error) *devpg.Server {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
