package devpg

import (
	"context"

	"github.com/txoutbox/outbox/internal/testing/devpg/cluster"
	"github.com/txoutbox/outbox/internal/testing/devpg/watched"
)

func openLocal(ctx context.Context, c config) (found, error) {
	bin, err := cluster.Find(ctx)
	if err != nil {
		return found{}, err
	}
	dir, err := watched.NewDir(c.memory)
	if err != nil {
		return found{}, err
	}
	return newCluster(ctx, c, dir, bin)
}

// newCluster runs the programs in bin in the directory, which it takes over.
func newCluster(ctx context.Context, c config, dir *watched.Dir, bin string) (found, error) {
	s, err := cluster.New(ctx, dir, bin, c.settings)
	if err != nil {
		return found{}, err
	}
	return found{s.URL(), s.Version(), bin, s, s.Close}, nil
}
