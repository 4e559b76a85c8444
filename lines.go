package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// lines are the payloads of one call in one text, each followed by a line feed, which no JSON
// needs. So many of them travel without quoting and without a buffer for each.
type lines struct {
	text    strings.Builder
	encoder *json.Encoder
}

// add adds a payload, and returns it as JSON that PostgreSQL can cast to jsonb: at most limit
// bytes, both as it is and with its numbers written out.
func (l *lines) add(payload any, limit int) (string, error) {
	if raw, ok := payload.(json.RawMessage); ok {
		if len(raw) <= limit && !json.Valid(raw) {
			return "", notJSON(raw)
		}
		s := string(raw)
		if err := checkPayload(s, limit); err != nil {
			return "", err
		}
		// It is JSON, so its line feeds are between tokens.
		l.text.WriteString(strings.ReplaceAll(s, "\n", " "))
		l.text.WriteByte('\n')
		return s, nil
	}
	if l.encoder == nil {
		l.encoder = json.NewEncoder(&l.text)
		l.encoder.SetEscapeHTML(false) // jsonb would undo it
	}
	start := l.text.Len()
	if err := l.encoder.Encode(payload); err != nil {
		return "", &marshalError{payload: reflect.TypeOf(payload), err: err}
	}
	s := l.text.String()[start : l.text.Len()-1] // without Encode's line feed
	return s, checkPayload(s, limit)
}

func checkPayload(s string, limit int) error {
	if len(s) > limit {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrPayloadTooLarge, len(s), limit)
	}
	size, at, fault := check(s)
	if fault != "" {
		return fmt.Errorf("%w: %s at byte %d", ErrInvalidPayload, fault, at)
	}
	if size > int64(limit) {
		return fmt.Errorf("%w: %d bytes with its numbers written out, at most %d", ErrPayloadTooLarge, size, limit)
	}
	return nil
}

// notJSON says where raw stops being JSON. The error of encoding/json would quote it.
func notJSON(raw json.RawMessage) error {
	at := int64(len(raw))
	var syntax *json.SyntaxError
	if err := json.Unmarshal(raw, new(json.RawMessage)); errors.As(err, &syntax) {
		at = syntax.Offset
	}
	return fmt.Errorf("%w: not JSON near byte %d", ErrInvalidPayload, at)
}
