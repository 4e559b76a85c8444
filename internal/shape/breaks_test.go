package shape

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

func broken[Old, New any](t *testing.T) string {
	return strings.Join(Breaks(of[Old](t).Tree(), of[New](t).Tree()), "; ")
}

type person struct {
	Email   string
	Age     int32
	Address struct{ ZIP string }
	Tags    []string
}

func TestBreaksNamesWhatStoredTasksLose(t *testing.T) {
	for name, c := range map[string]struct{ got, want string }{
		"nothing":  {broken[person, person](t), ""},
		"optional": {broken[struct{ A int }, struct{ A, B int }](t), ""},
		"required": {broken[struct{ A int }, struct {
			A int
			B int `outbox:"required"`
		}](t), "B is new and required: stored tasks lack it"},
		"required now": {broken[struct{ A int }, struct {
			A int `outbox:"required"`
		}](t), "A is required now: stored tasks may lack it"},
		"not any more": {broken[struct {
			A int `outbox:"required"`
		}, struct{ A int }](t), ""},
		"required in a new object": {broken[struct{ A int }, struct {
			A int
			B *struct {
				C int `outbox:"required"`
			}
		}](t), ""},
		"removed": {broken[struct{ A, B int }, struct{ A int }](t), "B (int64) is gone: its value in stored tasks is lost"},
		"renamed": {broken[struct{ A int }, struct {
			A int `json:"b"`
		}](t), "A (int64) is gone: its value in stored tasks is lost"},
		"another case": {broken[struct{ ID int }, struct {
			A int `json:"id"`
		}](t), ""},
		"an object removed": {broken[person, struct {
			Email string
			Age   int
			Tags  []string
		}](t), "Address (object) is gone: its value in stored tasks is lost"},
		"nested": {broken[person, struct {
			Email   string
			Age     int
			Address struct{ Zipcode string }
			Tags    []int
		}](t), "Address.ZIP (string) is gone: its value in stored tasks is lost; Tags[] was string and is int64: stored tasks may not decode"},
		"elements": {broken[[]person, []struct{ Email string }](t), "[].Address (object) is gone: its value in stored tasks is lost; [].Age (int32) is gone: its value in stored tasks is lost; [].Tags (array) is gone: its value in stored tasks is lost"},
		"other keys": {broken[struct{ A, B map[string]int }, struct {
			A map[int]int
			B map[time.Time]int
		}](t), "A was map and is map[int64]: stored tasks may not decode; B was map and is map[time.Time]: stored tasks may not decode"},
		"wider keys": {broken[struct{ A, B map[int32]int }, struct {
			A map[int]int
			B map[string]int
		}](t), ""},
		"an array": {broken[struct{ A []int }, struct{ A [2]int }](t), "A was array and is array[2]: stored tasks may not decode"},
		"one cut":  {broken[[3]int, [2]int](t), ". was array[3] and is array[2]: stored tasks may not decode"},
		"one extended": {broken[struct{ A, B [2]int }, struct {
			A [3]int
			B []int
		}](t), ""},
		"a pointer":       {broken[struct{ A int }, *struct{ A *int }](t), ""},
		"wider":           {broken[struct{ A, B, C, D any }, struct{ A, B, C, D any }](t) + broken[int8, int64](t) + broken[uint8, int16](t) + broken[int32, float64](t) + broken[int, json.Number](t), ""},
		"narrower":        {broken[int64, int32](t), ". was int64 and is int32: stored tasks may not decode"},
		"unsigned":        {broken[int8, uint64](t), ". was int8 and is uint64: stored tasks may not decode"},
		"digits are lost": {broken[int64, float64](t), ". was int64 and is float64: stored tasks may not decode"},
		"retyped":         {broken[struct{ A string }, struct{ A time.Time }](t), "A was string and is time.Time: stored tasks may not decode"},
		"any":             {broken[person, any](t) + broken[struct{ A person }, struct{ A json.RawMessage }](t), ""},
		"any that loses digits": {broken[struct {
			A int64
			B []map[string]json.Number
			C json.RawMessage
		}, struct{ A, B, C any }](t), "A was int64 and is any: numbers of stored tasks may lose digits; json.RawMessage holds them; " +
			"B was array and is any: numbers of stored tasks may lose digits; json.RawMessage holds them; " +
			"C was JSON and is any: numbers of stored tasks may lose digits; json.RawMessage holds them"},
		"float32": {broken[struct {
			A int16
			B int32
		}, struct{ A, B float32 }](t), "B was int32 and is float32: stored tasks may not decode"},
		"in a string": {broken[struct {
			A int
			B json.Number
			C **int
		}, struct {
			A json.Number `json:",string"`
			B json.Number `json:",string"`
			//lint:ignore SA5008 encoding/json ignores the option here, and so does what is tested
			C **int `json:",string"`
		}](t), "A was int64 and is number in a string: stored tasks may not decode; B was number and is number in a string: stored tasks may not decode"},
		"an interface": {broken[string, fmt.Stringer](t), ". was string and is fmt.Stringer: stored tasks may not decode"},
		"it encodes itself": {broken[writeOnly, struct{ A int }](t),
			". was github.com/txoutbox/outbox/internal/shape.writeOnly and is object: stored tasks may not decode"},
		"an unexported pointer": {broken[struct{ inner }, struct{ *inner }](t),
			"A was int64 and is int64 in an embedded pointer to an unexported struct: stored tasks may not decode"},
		"bytes": {broken[struct {
			A []byte
			B [2]byte
			C []hex
		}, struct {
			A [2]byte
			B []byte
			C []byte
		}](t), "A was base64 and is array[2]: stored tasks may not decode; B was array[2] and is base64: stored tasks may not decode; " +
			"C was array and is base64: stored tasks may not decode"},
		"fields of two cases": {broken[struct {
			A int `json:"id"`
			B int `json:"ID"`
		}, struct {
			A int `json:"Id"`
		}](t), "id and ID are one field now: a value in stored tasks is lost"},
		"a field of each case": {broken[struct {
			A int `json:"id"`
		}, struct {
			A string `json:"Id"`
			B int    `json:"ID"`
		}](t), "id (int64) may be any of the fields ID, Id: its value in stored tasks may be lost"},
		"the same case first": {broken[struct {
			A int `json:"id"`
		}, struct {
			A string `json:"ID"`
			B int    `json:"id"`
		}](t), ""},
		"names with dots": {broken[struct {
			A struct{ B int } `json:"a"`
		}, struct {
			A struct{} `json:"a"`
			B int      `json:"a.B"`
		}](t), "a.B (int64) is gone: its value in stored tasks is lost"},
		"required as any": {broken[struct{ A string }, struct {
			A any `outbox:"required"`
		}](t), "A is required now: stored tasks may lack it"},
		"from any": {broken[any, string](t), ". was any and is string: stored tasks may not decode"},
		"a map":    {broken[struct{ A map[string]int }, struct{ A []int }](t), "A was map and is array: stored tasks may not decode"},
		"recursion": {broken[node, struct {
			Name string
			Next *node
		}](t), "Next was as . and is object: stored tasks may not decode; children (array) is gone: its value in stored tasks is lost"},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %q, want %q", name, c.got, c.want)
		}
	}
}
