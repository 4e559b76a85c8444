// Package codec encodes and decodes payloads by the codecs that an app gives. Package outbox makes the sets;
// handlers, dashboard and outboxtest decode by them.
package codec

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"unicode"
	"unicode/utf8"

	"github.com/txoutbox/outbox/internal/copied"
	"github.com/txoutbox/outbox/internal/guard"
)

// Header is the header that names the codec of a task's payload.
const Header = copied.Prefix + "codec"

// Codec is an outbox.PayloadCodec.
type Codec interface {
	Name() string
	Encode(plain []byte) ([]byte, error)
	Decode(stored []byte) ([]byte, error)
}

// Set is the codecs of a task type: the first writes, and all read. It is immutable. The nil Set has none.
type Set struct {
	writes string
	byName map[string]Codec
}

const maxName = 64

// MostStored is the most bytes of a payload, as its codec stores it too: the most of outbox.MaxPayload.
const MostStored = 16 << 20

// New makes a set. The error says which codec is not valid, and what to do.
func New(all ...Codec) (*Set, error) {
	s := &Set{byName: map[string]Codec{}}
	for i, c := range all {
		if c == nil {
			return nil, fmt.Errorf("codec %d is nil: leave it out", i)
		}
		var name string
		if broken := guard.Call(func() { name = c.Name() }); broken != nil {
			return nil, fmt.Errorf("codec %d: its Name: %w", i, broken)
		}
		if !validName(name) {
			return nil, fmt.Errorf("codec %d: the name %.64q: use 1 to %d bytes of UTF-8 that print", i, name, maxName)
		}
		if s.byName[name] != nil {
			return nil, fmt.Errorf("two codecs are named %q: give each key or method a name of its own", name)
		}
		if s.byName[name] = c; i == 0 {
			s.writes = name
		}
	}
	return s, nil
}

func validName(name string) bool {
	if name == "" || len(name) > maxName || !utf8.ValidString(name) {
		return false
	}
	for _, r := range name {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// Writes is the name of the codec that encodes new tasks; "" without one.
func (s *Set) Writes() string {
	if s == nil {
		return ""
	}
	return s.writes
}

// Encode returns the JSON string that is stored for a payload, by the codec of the name. A panic of the codec is
// an error. No error of this package quotes the payload.
func (s *Set) Encode(name string, plain []byte) (string, error) {
	c, err := s.named(name)
	if err != nil {
		return "", err
	}
	var encoded []byte
	if broken := guard.Call(func() { encoded, err = c.Encode(plain) }); broken != nil {
		err = broken
	}
	if err != nil {
		return "", fmt.Errorf("the codec %q does not encode it: %w", name, err)
	}
	return `"` + base64.StdEncoding.EncodeToString(encoded) + `"`, nil
}

var (
	errNoString = errors.New("it is no JSON string of base64")
	errNoJSON   = errors.New("Decode returned no JSON")
)

// Decode returns the payload of a stored JSON string, by the codec of the name.
func (s *Set) Decode(name string, stored []byte) (json.RawMessage, error) {
	c, err := s.named(name)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (json.RawMessage, error) {
		return nil, fmt.Errorf("the codec %q does not decode the payload: %w", name, err)
	}
	var encoded []byte // encoding/json reads a string of base64 into it, and null
	if len(stored) == 0 || stored[0] != '"' || json.Unmarshal(stored, &encoded) != nil {
		return fail(errNoString)
	}
	var plain []byte
	if broken := guard.Call(func() { plain, err = c.Decode(encoded) }); broken != nil {
		err = broken
	}
	if err != nil {
		return fail(err)
	}
	if !json.Valid(plain) {
		return fail(errNoJSON)
	}
	return plain, nil
}

// Has reports whether a codec of the name is in the set.
func (s *Set) Has(name string) bool { return s != nil && s.byName[name] != nil }

func (s *Set) named(name string) (Codec, error) {
	if !s.Has(name) {
		return nil, fmt.Errorf("the payload is encoded by the codec %q, which is not given here: "+
			"name it in outbox.Codec of the task type, behind the one that writes", name)
	}
	return s.byName[name], nil
}

// Without are the headers of a task without that of its codec, and its name; nil if none is left.
func Without(headers map[string]string) (map[string]string, string) {
	name, is := headers[Header]
	if !is {
		return headers, ""
	}
	if len(headers) == 1 {
		return nil, name
	}
	headers = maps.Clone(headers)
	delete(headers, Header)
	return headers, name
}

// HookError is the error of an outbox.BeforeEnqueue: the app's, and no database's.
type HookError struct {
	Type string
	Err  error
}

func (e *HookError) Error() string {
	return fmt.Sprintf("outbox: BeforeEnqueue of %s: %v", e.Type, e.Err)
}

func (e *HookError) Unwrap() error { return e.Err }

// What package outbox tells this module's other packages and hides from apps. It sets these as it is
// initialised.
var (
	// Of returns the set of an []outbox.Option; nil if no codec is among them.
	Of func(options any) *Set
	// Plain is the outbox.Option that takes hooks and codecs back.
	Plain any
	// Option returns the outbox.Option of a set.
	Option func(*Set) any
	// HasHook reports whether an outbox.BeforeEnqueue is among the options.
	HasHook func(options any) bool
)
