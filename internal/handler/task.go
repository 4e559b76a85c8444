package handler

import (
	"encoding/json"
	"reflect"

	"github.com/txoutbox/outbox"
)

// payload is the field that differs between tasks of two payload types.
var payload, _ = reflect.TypeFor[outbox.Task[json.RawMessage]]().FieldByName("Payload")

// Fill copies each field of a task except its payload.
func Fill[P any](t *outbox.Task[P], raw *outbox.Task[json.RawMessage]) {
	to, from := reflect.ValueOf(t).Elem(), reflect.ValueOf(raw).Elem()
	for i := range to.NumField() {
		if i != payload.Index[0] {
			to.Field(i).Set(from.Field(i))
		}
	}
}
