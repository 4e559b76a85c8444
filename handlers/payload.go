package handlers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// unmarshal decodes a payload; numbers in an any become json.Number, so none loses digits. Its
// errors name the place and the types, never the value.
func unmarshal(payload json.RawMessage, into any, plain bool) error {
	if plain {
		return decoded(json.Unmarshal(payload, into), into)
	}
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	return decoded(d.Decode(into), into)
}

// unmarshaler does the same for many payloads, one after the other, with one decoder, which saves
// its garbage.
type unmarshaler struct {
	plain bool
	in    bytes.Reader
	json  *json.Decoder
}

func (u *unmarshaler) unmarshal(payload json.RawMessage, into any) error {
	u.in.Reset(payload)
	if u.json == nil {
		if u.json = json.NewDecoder(&u.in); !u.plain {
			u.json.UseNumber()
		}
	}
	before := u.json.InputOffset()
	err := u.json.Decode(into)
	rest := int64(len(payload)) - (u.json.InputOffset() - before)
	if err != nil || rest > 0 {
		u.json = nil // the next one must not begin with what is left
	}
	if rest > 0 && u.plain {
		err = json.Unmarshal(payload, into)
	}
	return decoded(err, into)
}

// decoded is the error of a payload that was to be decoded into a value.
func decoded(err error, into any) error {
	if err == nil {
		return nil
	}
	var t *json.UnmarshalTypeError
	switch {
	case !errors.As(err, &t):
		return fmt.Errorf("handlers: the payload does not decode into a %T", into)
	case t.Field == "":
		return fmt.Errorf("handlers: the payload does not decode: it does not fit %v", t.Type)
	}
	return fmt.Errorf("handlers: the payload does not decode: field %q does not fit %v", t.Field, t.Type)
}

// plain reports whether no value of t can hold an interface, which decides how a number is decoded:
// without one a payload is decoded by json.Unmarshal, which costs less.
func plain(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return true
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return false
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return plain(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if !plain(t.Field(i).Type, seen) {
				return false
			}
		}
	}
	return true
}
