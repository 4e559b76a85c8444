package relay

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// appLog is the app's slog.Handler. A record at which it panics is lost, which is said once on
// standard error.
type appLog struct {
	slog.Handler
	told *sync.Once
}

func newAppLog(l *slog.Logger) *slog.Logger { return slog.New(appLog{l.Handler(), &sync.Once{}}) }

func (l appLog) Enabled(ctx context.Context, level slog.Level) (enabled bool) {
	l.call(func() { enabled = l.Handler.Enabled(ctx, level) })
	return enabled
}

func (l appLog) Handle(ctx context.Context, record slog.Record) (err error) {
	l.call(func() { err = l.Handler.Handle(ctx, record) })
	return err
}

func (l appLog) call(f func()) {
	if err := guard.Call(f); err != nil {
		l.told.Do(func() {
			fmt.Fprintln(os.Stderr, "outbox: the handler of Config.Logger panicked; records are lost:", pgerr.Text(err))
		})
	}
}
