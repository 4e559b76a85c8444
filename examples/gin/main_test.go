package main

import (
	"os"
	"testing"

	"github.com/txoutbox/outbox/examples/internal/webtest"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestAnOrderIsServedAndTheDashboardAsksForTheSession(t *testing.T) {
	webtest.Serves(t, addr, run, webtest.Page{Path: "/outbox/", Status: 401},
		webtest.Page{Path: "/outbox/", Password: "wrong", Status: 401}, webtest.Page{Path: "/outbox/dead", Status: 401})
}
