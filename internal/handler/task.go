package handler

import (
	"encoding/json"
	"reflect"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/tasklease"
)

// payload is the field that differs between tasks of two payload types.
var payload, _ = reflect.TypeFor[outbox.Task[json.RawMessage]]().FieldByName("Payload")

// Fill copies each field of a task, and its lease, but not its payload.
func Fill[P any](t *outbox.Task[P], raw *outbox.Task[json.RawMessage]) {
	*tasklease.Of(t) = *tasklease.Of(raw)
	to, from := reflect.ValueOf(t).Elem(), reflect.ValueOf(raw).Elem()
	for i := range to.NumField() {
		if field := to.Field(i); i != payload.Index[0] && field.CanSet() {
			field.Set(from.Field(i))
		}
	}
}
