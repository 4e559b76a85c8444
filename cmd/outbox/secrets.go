package main

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"
	"github.com/txoutbox/outbox/admin"
)

// secrets are added with --payload.
type secrets struct {
	Payload     json.RawMessage `json:"payload"`
	Headers     json.RawMessage `json:"headers"`
	UniqueKey   string          `json:"unique_key"`
	OrderingKey string          `json:"ordering_key"`
}

// secretsOf reads what only --payload shows; nil without it.
func secretsOf(ctx context.Context, c *admin.Client, id int64, shown bool) (*secrets, error) {
	if !shown {
		return nil, nil
	}
	s, err := c.Secrets(ctx, id)
	if s.Headers == nil {
		s.Headers = json.RawMessage("null")
	}
	return &secrets{s.Payload, s.Headers, s.UniqueKey, s.OrderingKey}, err
}

func (s *secrets) fields(f *fields) {
	if s == nil {
		return
	}
	f.add("unique key", s.UniqueKey)
	f.add("ordering key", s.OrderingKey)
	if string(s.Headers) != "null" {
		f.add("headers", indented(s.Headers))
	}
	f.add("payload", indented(s.Payload))
}

// indented is a JSON text for people.
func indented(text json.RawMessage) string {
	if out, err := json.MarshalIndent(text, "", "  "); err == nil && len(text) > 60 {
		return string(out)
	}
	return string(text)
}

func payloadFlag(c *cobra.Command, shown *bool) {
	c.Flags().BoolVar(shown, "payload", false, "show payload, headers and keys as well")
}
