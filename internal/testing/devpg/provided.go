package devpg

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/txoutbox/outbox/internal/testing/devpg/cluster"
	"github.com/txoutbox/outbox/internal/testing/devpg/watched"
)

// Provided is the line of JSON that the program internal/testing/devpg/provide prints.
type Provided struct {
	URL, Version, From string // of a container
	Error              string // why there is none
}

// openDocker has the program run a container as long as this process lives.
func openDocker(ctx context.Context, c config) (found, error) {
	container, end, err := provide(ctx, append([]string{"docker"}, cluster.Flags(c.settings)...)...)
	if err != nil {
		return found{}, err
	}
	u, err := url.Parse(container.URL)
	if err != nil {
		return found{}, errors.Join(err, end())
	}
	return found{u, container.Version, container.From, nil, end}, nil
}

// openEmbedded never has the files in memory, where programs cannot run everywhere.
func openEmbedded(ctx context.Context, c config) (found, error) {
	dir, err := watched.NewDir(false)
	if err != nil {
		return found{}, err
	}
	home := filepath.Join(dir.Path, "binaries")
	_, end, err := provide(ctx, "embedded", home, dir.Path)
	if err == nil {
		err = errors.Join(end(), dir.Own(home))
	}
	if err != nil {
		return found{}, errors.Join(err, dir.Remove())
	}
	return newCluster(ctx, c, dir, filepath.Join(home, "bin"))
}

// provide runs the program with the arguments by go run, as its dependencies are no app's. It
// returns what the program printed. end lets it remove what it started, and waits for that. The end
// of this process does so too: it closes the pipe that the program reads.
func provide(ctx context.Context, args ...string) (p Provided, end func() error, err error) {
	_, file, _, _ := runtime.Caller(0)
	source := filepath.Join(filepath.Dir(file), "provide")
	if _, err := os.Stat(source); err != nil {
		return p, nil, errors.New("needs the source of internal/testing/devpg/provide, at the path that this program was built from")
	}
	cmd := exec.Command("go", append([]string{"run", "."}, args...)...)
	cmd.Dir = source
	cmd.Env = append(cmd.Environ(), "GOWORK=off") // go.mod and go.sum have all that it needs
	watched.Detach(cmd)
	var said bytes.Buffer
	cmd.Stderr = &said
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err := cmp.Or(err1, err2, cmd.Start()); err != nil {
		return p, nil, err
	}
	end = sync.OnceValue(func() error {
		stdin.Close()
		_, _ = io.Copy(io.Discard, stdout)
		if err := cmd.Wait(); err != nil {
			return errors.New(strings.TrimSpace(said.String()))
		}
		return nil
	})
	stop := context.AfterFunc(ctx, func() {
		stdin.Close()
		_ = cmd.Process.Signal(os.Interrupt) // go run may still be building
	})
	line := json.NewDecoder(stdout).Decode(&p)
	if !stop() {
		return p, nil, errors.Join(ctx.Err(), end())
	}
	if line != nil || p.Error != "" {
		ended := end()
		if p.Error != "" {
			ended = errors.New(p.Error)
		}
		return p, nil, cmp.Or(ended, line)
	}
	return p, end, nil
}
