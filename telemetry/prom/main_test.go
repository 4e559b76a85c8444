package outboxprom_test

import (
	"os"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
