package devpg

import (
	"net/url"

	"github.com/txoutbox/outbox/internal/testing/devpg/cluster"
)

// config is what the options of Open say.
type config struct {
	settings map[string]string
	local    bool
	memory   bool
}

// found is a PostgreSQL that Open has found or started.
type found struct {
	url           *url.URL // for the administrator
	version, from string
	cluster       *cluster.Cluster // nil unless Stop and Start work
	close         func() error
}
