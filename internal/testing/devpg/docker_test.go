//go:build unix

package devpg_test

import (
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

func TestDocker(t *testing.T) {
	needs.Docker(t)
	clearChoice(t)
	t.Setenv("OUTBOX_TEST_POSTGRES", "docker")
	s, logged, err := open(t)
	if err != nil {
		t.Fatal(err)
	}
	wantChoice(t, s, logged, "docker")
	database, drop, err := s.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	query(t, database, "SELECT 1")
	drop()
	if s.Stop("fast") != devpg.ErrNotLocal {
		t.Error("Stop of a container: want ErrNotLocal")
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Setenv("OUTBOX_TEST_POSTGRES_IMAGE", "127.0.0.1:1/no/such:image")
	if _, _, err := open(t); err == nil || !strings.Contains(err.Error(), "image 127.0.0.1:1/no/such:image: ") {
		t.Errorf("an image that cannot be had: got error %v", err)
	}
}

func TestContainerEndsWithItsProgram(t *testing.T) {
	needs.Docker(t)
	t.Parallel()
	p := startChild(t, "docker", "OUTBOX_TEST_POSTGRES=docker")
	u, err := url.Parse(p.opened(t))
	if err != nil {
		t.Fatal(err)
	}
	containers := func() string {
		out, err := exec.Command("docker", "ps", "-aq", "--filter", "label=outbox-devpg", "--filter",
			"publish="+u.Port()).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	if containers() == "" {
		t.Fatalf("no container at port %s: the test looks in the wrong place", u.Port())
	}
	p.cmd.Process.Kill()
	p.cmd.Wait()
	eventually(t, func() error {
		if left := containers(); left != "" {
			return fmt.Errorf("container %s is left", left)
		}
		return nil
	})
}
