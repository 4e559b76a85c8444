package p

import (
	"context"
	"net/http"

	"github.com/txoutbox/outbox/relay"
)

var (
	r      *relay.Relay
	server *http.Server
	after  context.Context
)
