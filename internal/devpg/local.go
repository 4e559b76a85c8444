package devpg

import (
	"context"

	"github.com/txoutbox/outbox/internal/devpg/cluster"
	"github.com/txoutbox/outbox/internal/devpg/watched"
)

func openLocal(ctx context.Context, c config) (source, string, error) {
	bin, err := cluster.Find(ctx)
	if err != nil {
		return nil, "", err
	}
	dir, err := watched.NewDir(c.memory)
	if err != nil {
		return nil, "", err
	}
	s, err := cluster.New(ctx, dir, bin, c.settings)
	return s, bin, err
}
