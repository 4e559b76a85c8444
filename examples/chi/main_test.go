package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	neturl "net/url"
	"os"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestAnOrderIsServedAndTheDashboardIsMounted(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // for a port that is free
	if err != nil {
		t.Fatal(err)
	}
	*addr = listener.Addr().String()
	listener.Close()
	ctx, stop := context.WithCancel(t.Context())
	read, write := io.Pipe()
	done := make(chan error, 1)
	url := pgtest.Database(t)
	go func() { done <- run(ctx, url, write) }()
	for path, want := range map[string]int{"/outbox/": 200, "/outbox/dead": 200, "/outbox/task?id=1": 404, "/elsewhere": 404} {
		status := 0
		relaytest.Eventually(t, time.Minute, path, func() bool {
			res, err := http.Get("http://" + *addr + path)
			if err != nil {
				return false // it does not serve yet
			}
			res.Body.Close()
			status = res.StatusCode
			return true
		})
		if status != want {
			t.Errorf("%s: %d, want %d", path, status, want)
		}
	}
	res, err := http.PostForm("http://"+*addr+"/orders", neturl.Values{"email": {"ada@example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil || res.StatusCode != http.StatusCreated || line != "mail to ada@example.com\n" {
		t.Errorf("POST: %s, and it printed %q, %v", res.Status, line, err)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
	*addr = "127.0.0.1:-1"
	if err := run(t.Context(), url, write); err == nil {
		t.Error("it served at no address")
	}
}
