package p

import "github.com/txoutbox/outbox/relay"

var r *relay.Relay
