package handlers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/shape"
)

// maxWarned bounds the unknown fields of a type that are logged: payloads choose their names.
const maxWarned = 20

// payloads decodes the payloads of one registration.
type payloads struct {
	of     reflect.Type
	plain  bool
	shape  *shape.Shape // nil: it has no fields
	strict bool

	silent atomic.Bool // without strict: maxWarned fields are logged
	mu     sync.Mutex
	warned map[string]bool // by path
}

// newPayloads also returns what is wrong with the tags of the type.
func newPayloads(of reflect.Type) (*payloads, error) {
	p := &payloads{of: of, plain: plain(of, map[reflect.Type]bool{}), warned: map[string]bool{}}
	s, err := shape.Of(of)
	if s.Checks() {
		p.shape = s
	}
	return p, err
}

// check compares a payload that has been decoded with the fields of its type.
func (p *payloads) check(c *Call, t *outbox.Task[json.RawMessage]) error {
	if p.shape == nil || p.silent.Load() {
		return nil
	}
	payload := []byte(t.Payload)
	if p.of.Kind() == reflect.Struct && string(bytes.TrimSpace(payload)) == "null" {
		payload = []byte("{}") // which decodes the same, and lacks the required fields
	}
	found := p.shape.Check(payload, p.strict)
	if len(found) == 0 {
		return nil
	}
	if p.strict {
		return strictError(found)
	}
	for _, f := range found {
		if p.first(f.Path) {
			c.Logger().Warn("outbox: a payload has a field that its Go type does not have; its value is ignored",
				"task_type", c.Type, "field", f.Path, "payload_type", p.of.String(), "task_id", t.ID)
		}
	}
	return nil
}

// first reports whether a field is to be logged: once, and not as one of too many.
func (p *payloads) first(path string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.warned[path] || len(p.warned) == maxWarned {
		return false
	}
	p.warned[path] = true
	p.silent.Store(len(p.warned) == maxWarned)
	return true
}

// strictError names fields, and no value.
func strictError(found []shape.Finding) error {
	texts := make([]string, len(found))
	for i, f := range found {
		texts[i] = fmt.Sprintf("unknown field %q", f.Path)
		if f.Missing {
			texts[i] = fmt.Sprintf("required field %q is missing", f.Path)
		}
	}
	return fmt.Errorf("handlers: the payload does not decode: %s", strings.Join(texts, ", "))
}
