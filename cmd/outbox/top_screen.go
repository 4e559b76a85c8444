package main

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"
)

// screen is a terminal that top has for itself.
type screen struct {
	out *os.File
	in  *os.File // nil: no keys
}

// screen is the terminal of stdout, if it is one.
func (a *app) screen() (*screen, bool) {
	out, ok := isTerminal(a.out.w)
	s := &screen{out: out}
	if in, ok := isTerminal(a.in); ok {
		s.in = in
	}
	return s, ok
}

// The alternate screen, without a cursor and without lines that go on in the next one; and back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// open takes the terminal, and returns a function that restores it.
func (s *screen) open() (restore func(), err error) {
	leave := func() { _, _ = io.WriteString(s.out, leaveScreen) }
	if s.in == nil {
		_, err = io.WriteString(s.out, enterScreen)
		return leave, err
	}
	state, err := term.MakeRaw(int(s.in.Fd()))
	if err != nil {
		return nil, err
	}
	_, err = io.WriteString(s.out, enterScreen)
	return func() { leave(); _ = term.Restore(int(s.in.Fd()), state) }, err
}

// keys are the typed bytes, until the process ends.
func (s *screen) keys() <-chan byte {
	keys := make(chan byte)
	if s.in != nil {
		go func() {
			defer close(keys)
			for b := make([]byte, 1); ; {
				if n, err := s.in.Read(b); err != nil || n == 0 {
					return
				}
				keys <- b[0]
			}
		}()
	}
	return keys
}

// draw replaces the shown lines.
func (s *screen) draw(lines []string) error {
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line + "\x1b[K")
	}
	b.WriteString("\x1b[J")
	_, err := io.WriteString(s.out, b.String())
	return err
}

func (s *screen) size() (width, height int) {
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width < 20 || height < 5 {
		return 80, 24
	}
	return width, height
}

// watch shows one view after the other, until q, ctrl-C or the end of ctx. It shows errors, and goes
// on.
func (a *app) watch(ctx context.Context, s *screen, v *view, every time.Duration, order string) error {
	restore, err := s.open()
	if err != nil {
		return err
	}
	defer restore()
	looks, stop := context.WithCancel(ctx)
	defer stop()
	type result struct {
		v   *view
		err error
	}
	results := make(chan result, 1)
	look := func(before *view) {
		next, err := a.view(looks, before)
		results <- result{next, err}
	}
	tick := time.NewTimer(every)
	defer tick.Stop()
	keys, problem := s.keys(), ""
	for {
		width, height := s.size()
		lines := v.lines(order, width, height-2)
		status := "q quits, s sorts (by " + order + ")"
		if problem != "" {
			status = problem
		}
		if err := s.draw(append(lines, "", cut(clean(status), width))); err != nil {
			return err
		}
		select {
		case <-tick.C:
			go look(v)
		case r := <-results:
			if tick.Reset(every); r.err != nil {
				problem = a.explain(ctx, r.err)
				continue
			}
			v, problem = r.v, ""
		case key, ok := <-keys:
			switch {
			case !ok:
				keys = nil // stdin has ended
			case key == 'q' || key == 3: // ctrl-C
				return nil
			case key == 's':
				order = topOrders[(slices.Index(topOrders, order)+1)%len(topOrders)]
			}
		case <-ctx.Done():
			return nil
		}
	}
}
