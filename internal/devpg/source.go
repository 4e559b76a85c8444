package devpg

import (
	"context"
	"net/url"
)

// source is a running PostgreSQL. Open has one implementation for each kind of server.
type source interface {
	URL() *url.URL // for the administrator
	Version() string
	Close() error
}

// opener finds or starts a server, and says where it comes from.
type opener func(ctx context.Context, c config) (s source, from string, err error)

// config is what the options of Open say.
type config struct {
	settings map[string]string
	local    bool
	memory   bool
}
