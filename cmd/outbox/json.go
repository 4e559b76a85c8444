package main

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// object is a JSON object, with its members in this order.
type object []member

type member struct {
	name  string
	value any
}

// renamed are members whose names differ from the names of their fields.
var renamed = map[string]string{
	"admin.Task.ID": "task_id", "admin.Relay.ID": "relay_id", "admin.AuditEntry.ID": "entry_id",
	"admin.Event.Kind": "event", "admin.Index.Name": "index",
	"admin.Index.BytesBefore": "before_bytes", "admin.Index.BytesAfter": "after_bytes",
}

// objectOf has a member for each field of a struct: RelayID is relay_id, and a time.Duration
// OldestReady is oldest_ready_seconds. The fields of an embedded struct are members too.
func objectOf(v any) (o object) {
	of := reflect.ValueOf(v)
	for i := range of.NumField() {
		field, value := of.Type().Field(i), of.Field(i).Interface()
		if field.Anonymous {
			o = append(o, objectOf(value)...)
			continue
		}
		name := renamed[of.Type().String()+"."+field.Name]
		if name == "" {
			name = strings.ToLower(wordEnd.ReplaceAllString(field.Name, "${1}_${2}"))
		}
		if _, ok := value.(time.Duration); ok {
			name += "_seconds"
		}
		o = append(o, member{name, value})
	}
	return o
}

var wordEnd = regexp.MustCompile(`([a-z])([A-Z])`)

// without leaves members out.
func (o object) without(names ...string) object {
	return slices.DeleteFunc(o, func(m member) bool { return slices.Contains(names, m.name) })
}

func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, m := range o {
		b.WriteByte("{,"[min(i, 1)])
		fmt.Fprintf(&b, "%q:", m.name)
		if err := encode(&b, jsonValue(m.value), ""); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// jsonValue is a value as JSON has it: a time is RFC 3339 in UTC, or null if it is zero; a duration
// is seconds; a struct is an object; a list is never null.
func jsonValue(v any) any {
	switch v := v.(type) {
	case time.Time:
		if v.IsZero() {
			return nil
		}
		return v.UTC().Format("2006-01-02T15:04:05.000000Z")
	case time.Duration:
		return v.Seconds()
	case json.Marshaler, encoding.TextMarshaler:
		return v
	}
	switch of := reflect.ValueOf(v); of.Kind() {
	case reflect.Struct:
		return objectOf(v)
	case reflect.Slice:
		list := make([]any, of.Len())
		for i := range list {
			list[i] = jsonValue(of.Index(i).Interface())
		}
		return list
	}
	return v
}

func encode(b *bytes.Buffer, v any, indent string) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	return e.Encode(v)
}
