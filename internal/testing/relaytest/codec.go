package relaytest

import "strings"

// Hidden is an outbox.PayloadCodec for tests, of its name.
type Hidden string

func (c Hidden) Name() string { return string(c) }

func (c Hidden) Encode(plain []byte) ([]byte, error) {
	return []byte(strings.Map(func(r rune) rune { return r ^ 1 }, string(plain))), nil
}

func (c Hidden) Decode(stored []byte) ([]byte, error) { return c.Encode(stored) }
