package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// The alternate screen, without a cursor and without lines that go on in the next one; and back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// watch shows one view after the other on a terminal, until ctx ends. It shows errors, and goes on.
func (a *app) watch(ctx context.Context, out *os.File, v *view, every time.Duration, order string) error {
	if _, err := io.WriteString(out, enterScreen); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(out, leaveScreen) }()
	tick := time.NewTicker(every)
	defer tick.Stop()
	status := "ctrl-C ends"
	for {
		width, height, err := term.GetSize(int(out.Fd()))
		if err != nil || width < 20 || height < 5 {
			width, height = 80, 24
		}
		lines := append(v.lines(order, width, height-2), "", cut(clean(status), width))
		if _, err := fmt.Fprintf(out, "\x1b[H%s\x1b[K\x1b[J", strings.Join(lines, "\x1b[K\n")); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		next, err := a.view(ctx, v)
		if err != nil {
			status = a.explain(ctx, err)
			continue
		}
		v, status = next, "ctrl-C ends"
	}
}
