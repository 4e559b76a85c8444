package outboxprom_test

import (
	"os"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
