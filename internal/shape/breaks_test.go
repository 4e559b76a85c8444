package shape

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func breaks[Old, New any](t *testing.T) string {
	return strings.Join(Breaks(of[Old](t).Lines(), of[New](t).Lines()), "; ")
}

type person struct {
	Email   string
	Age     int32
	Address struct{ ZIP string }
	Tags    []string
}

func TestBreaksNamesWhatStoredTasksLose(t *testing.T) {
	for name, c := range map[string]struct{ got, want string }{
		"nothing":  {breaks[person, person](t), ""},
		"optional": {breaks[struct{ A int }, struct{ A, B int }](t), ""},
		"required": {breaks[struct{ A int }, struct {
			A int
			B int `outbox:"required"`
		}](t), "B is new and required: stored tasks lack it"},
		"required now": {breaks[struct{ A int }, struct {
			A int `outbox:"required"`
		}](t), "A is required now: stored tasks may lack it"},
		"not any more": {breaks[struct {
			A int `outbox:"required"`
		}, struct{ A int }](t), ""},
		"required in a new object": {breaks[struct{ A int }, struct {
			A int
			B *struct {
				C int `outbox:"required"`
			}
		}](t), ""},
		"removed": {breaks[struct{ A, B int }, struct{ A int }](t), "B (int64) is gone: its value in stored tasks is lost"},
		"renamed": {breaks[struct{ A int }, struct {
			A int `json:"b"`
		}](t), "A (int64) is gone: its value in stored tasks is lost"},
		"another case": {breaks[struct{ ID int }, struct {
			A int `json:"id"`
		}](t), ""},
		"an object removed": {breaks[person, struct {
			Email string
			Age   int
			Tags  []string
		}](t), "Address (object) is gone: its value in stored tasks is lost"},
		"nested": {breaks[person, struct {
			Email   string
			Age     int
			Address struct{ Zipcode string }
			Tags    []int
		}](t), "Address.ZIP (string) is gone: its value in stored tasks is lost; Tags[] was string and is int64: stored tasks may not decode"},
		"elements": {breaks[[]person, []struct{ Email string }](t), "[].Address (object) is gone: its value in stored tasks is lost; [].Age (int32) is gone: its value in stored tasks is lost; [].Tags (array) is gone: its value in stored tasks is lost"},
		"other keys": {breaks[struct{ A, B map[string]int }, struct {
			A map[int]int
			B map[time.Time]int
		}](t), "A was map and is map[int64]: stored tasks may not decode; B was map and is map[time.Time]: stored tasks may not decode"},
		"wider keys": {breaks[struct{ A, B map[int32]int }, struct {
			A map[int]int
			B map[string]int
		}](t), ""},
		"an array": {breaks[struct{ A []int }, struct{ A [2]int }](t), "A was array and is array[2]: stored tasks may not decode"},
		"one cut":  {breaks[[3]int, [2]int](t), ". was array[3] and is array[2]: stored tasks may not decode"},
		"one extended": {breaks[struct{ A, B [2]int }, struct {
			A [3]int
			B []int
		}](t), ""},
		"a pointer":       {breaks[struct{ A int }, *struct{ A *int }](t), ""},
		"wider":           {breaks[struct{ A, B, C, D any }, struct{ A, B, C, D any }](t) + breaks[int8, int64](t) + breaks[uint8, int16](t) + breaks[int32, float64](t) + breaks[int, json.Number](t), ""},
		"narrower":        {breaks[int64, int32](t), ". was int64 and is int32: stored tasks may not decode"},
		"unsigned":        {breaks[int8, uint64](t), ". was int8 and is uint64: stored tasks may not decode"},
		"digits are lost": {breaks[int64, float64](t), ". was int64 and is float64: stored tasks may not decode"},
		"retyped":         {breaks[struct{ A string }, struct{ A time.Time }](t), "A was string and is time.Time: stored tasks may not decode"},
		"any":             {breaks[person, any](t) + breaks[struct{ A person }, struct{ A json.RawMessage }](t), ""},
		"from any":        {breaks[any, string](t), ". was any and is string: stored tasks may not decode"},
		"a map":           {breaks[struct{ A map[string]int }, struct{ A []int }](t), "A was map and is array: stored tasks may not decode"},
		"recursion": {breaks[node, struct {
			Name string
			Next *node
		}](t), "Next was as . and is object: stored tasks may not decode; children (array) is gone: its value in stored tasks is lost"},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %q, want %q", name, c.got, c.want)
		}
	}
}
