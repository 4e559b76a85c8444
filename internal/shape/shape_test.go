package shape

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

type base struct {
	ID   int `json:"id" outbox:"required"`
	Both string
}

type other struct{ Both string }

type hidden struct{ Secret string }

type named struct{ X int }

type node struct {
	Name     string
	Children []*node `json:"children,omitempty"`
	Next     *node
}

type own struct{ A int }

func (*own) UnmarshalJSON([]byte) error { return nil }

type line struct {
	SKU   string `json:"sku" outbox:"required"`
	Count int    `json:",string"`
}

type order struct {
	base
	other
	hidden
	named   `json:"Named"`
	Address *struct {
		ZIP  string `json:"zip" outbox:"required"`
		City string
	} `json:"address"`
	Lines  []line
	Prices map[string]struct{ Cents int64 }
	Grid   [2][]line
	Own    own
	OwnMap map[string]own
	At     time.Time
	IP     netip.Addr
	Any    any
	Raw    json.RawMessage
	Bytes  []byte
	Minus  int `json:"-"`
	//lint:ignore SA5008 the field's name is "-"
	Dash int `json:"-,"`
	//lint:ignore SA5008 the name is not valid, so that of the field is used
	Odd  int `json:"a\"b"`
	Tree node
	//lint:ignore U1000 no field of the JSON
	lower int
}

func of[T any](t *testing.T) *Shape {
	t.Helper()
	s, err := Of(reflect.TypeFor[T]())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestUnknownAndMissingFieldsAreFoundWhereverTheyAre(t *testing.T) {
	s := of[order](t)
	for payload, want := range map[string]string{
		`{"id": 1}`:                  "",
		` { "ID" : null } `:          "",
		`{"iD": 1, "dash": 1}`:       "unknown dash",
		`{"\u0069d": 1, "-": 1}`:     "",
		`{}`:                         "missing id",
		`null`:                       "",
		`{"id": 1, "Both": "a"}`:     "unknown Both",
		`{"id": 1, "Secret": "a"}`:   "",
		`{"id": 1, "Minus": 1}`:      "unknown Minus",
		`{"id": 1, "lower": 1}`:      "unknown lower",
		`{"id": 1, "X": 1}`:          "unknown X",
		`{"id": 1, "address": null}`: "",
		`{"id": 1, "named": {"X": 1, "Y": [1, "}", {"a": "\"}"}]}, "Z": 2}`:                                 "unknown Named.Y, unknown Z",
		`{"id": 1, "address": {"zipcode": "1", "City": "a"}}`:                                               "unknown address.zipcode, missing address.zip",
		`{"id": 1, "lines": [{"sku": "a"}, {"SKUs": "b", "Count": "1"}, null]}`:                             "unknown Lines[].SKUs, missing Lines[].sku",
		`{"id": 1, "Prices": {"hunter2": {"Cents": 1, "Euro": 2}, "b": {}}}`:                                "unknown Prices.*.Euro",
		`{"id": 1, "Grid": [[{"sku": "a", "b": 1}], []]}`:                                                   "unknown Grid[][].b",
		`{"id": 1, "Own": {"x": 1}, "OwnMap": {"a": {"x": 1}}, "Any": {"x": 1}, "Raw": {"x": {}}}`:          "",
		`{"id": 1, "Tree": {"children": [{"Next": {"children": [{"nope": 1}]}}, {"Name": "a"}]}}`:           "unknown Tree.children[].Next.children[].nope",
		`{"id": 1, "Tree": ` + strings.Repeat(`{"Next": `, 20) + `{"a": 1}` + strings.Repeat("}", 20) + `}`: "unknown Tree" + strings.Repeat(".Next", 15) + ".….a",
		`{"id": 1, "At": "2026-01-01T00:00:00Z", "IP": "::1", "Bytes": "", "Odd": 1}`:                       "",
		`{"id": 1, "` + strings.Repeat("x", 100) + `": 1}`:                                                  "unknown " + strings.Repeat("x", 64),
		`{"id": 1, "a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1}`:                      "unknown a, unknown b, unknown c, unknown d, unknown e, unknown f, unknown g, unknown h, unknown i, unknown j",
	} {
		var got []string
		for _, f := range s.Check([]byte(payload), true) {
			got = append(got, map[bool]string{true: "missing ", false: "unknown "}[f.Missing]+f.Path)
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("%s: got %q, want %q", payload, text, want)
		}
		for _, f := range s.Check([]byte(payload), false) {
			if f.Missing {
				t.Errorf("%s: %s is missing, which nobody asked for", payload, f.Path)
			}
		}
	}
}

// random is JSON with names that the types have, or nearly.
func random(r *rand.Rand, depth int) string {
	names := []string{"id", "ID", "Both", "both", "Secret", "Named", "X", "address", "zip", "Lines", "sku", "Prices", "Cents", "Grid", "Tree", "children", "Next", "Name", "Own", "Raw", "Any", "nope", "-", "Minus", `\u0069d`, "a\\\"b", "Odd", "kſ"}
	switch r.IntN(4 + 3*min(depth, 1)) {
	case 0:
		return "1"
	case 1:
		return `"a \" } ] , text"`
	case 2:
		return "null"
	case 3:
		return " true "
	case 4:
		parts := make([]string, r.IntN(3))
		for i := range parts {
			parts[i] = random(r, depth-1)
		}
		return "[" + strings.Join(parts, " ,") + " ]"
	}
	parts := make([]string, r.IntN(4))
	for i := range parts {
		parts[i] = fmt.Sprintf(`"%s" :%s`, names[r.IntN(len(names))], random(r, depth-1))
	}
	return "{ " + strings.Join(parts, ", ") + "}"
}

// encoding/json knows which fields are unknown, too, at the price of another decoder.
func TestUnknownFieldsAreThoseOfEncodingJSON(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	types := []reflect.Type{reflect.TypeFor[order](), reflect.TypeFor[node](), reflect.TypeFor[[]node](), reflect.TypeFor[map[string]*node](), reflect.TypeFor[line](), reflect.TypeFor[base]()}
	unknown, fine := 0, 0
	for range 50_000 {
		of := types[r.IntN(len(types))]
		payload := []byte(random(r, 5))
		if json.Unmarshal(payload, reflect.New(of).Interface()) != nil {
			continue
		}
		d := json.NewDecoder(bytes.NewReader(payload))
		d.DisallowUnknownFields()
		want := d.Decode(reflect.New(of).Interface()) != nil
		s, err := Of(of)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(s.Check(payload, false)) > 0; got != want {
			t.Fatalf("%v, %s: got %v, want %v", of, payload, got, want)
		}
		if want {
			unknown++
		} else {
			fine++
		}
	}
	if unknown < 1000 || fine < 1000 {
		t.Errorf("%d payloads had unknown fields, %d had none: too few", unknown, fine)
	}
}

func TestACheckOfAPayloadThatFitsAllocatesNothing(t *testing.T) {
	s := of[order](t)
	payload := []byte(`{"id": 1, "Lines": [{"sku": "a"}, {"sku": "b"}], "Prices": {"a": {"Cents": 1}}, "address": {"zip": "1"}}`)
	if n := testing.AllocsPerRun(100, func() { s.Check(payload, true) }); n != 0 {
		t.Errorf("it allocates %v times", n)
	}
}

func FuzzACheckEnds(f *testing.F) {
	f.Add(`{"id": 1, "Lines": [{"sku": "a`)
	s, _ := Of(reflect.TypeFor[order]())
	f.Fuzz(func(_ *testing.T, payload string) { s.Check([]byte(payload), true) })
}

type tagged struct {
	B int
	//lint:ignore U1000 that is the fault
	a int `outbox:"required"`
}

func TestTagsThatMakeNoSenseAreRefused(t *testing.T) {
	for of, want := range map[reflect.Type]string{
		reflect.TypeFor[struct {
			A int `outbox:"requierd"`
		}](): `field A of struct { A int "outbox:\"requierd\"" } has the tag outbox:"requierd": there is only "required"`,
		reflect.TypeFor[[]map[string]*struct {
			A int `json:",omitempty" outbox:"required"`
		}](): "is required and omitted if it is empty or zero",
		reflect.TypeFor[struct {
			A int `json:"-" outbox:"required"`
		}](): "is required, and no field of the JSON",
		reflect.TypeFor[struct {
			order `outbox:"required"`
		}](): "is required, and no field of the JSON",
		reflect.TypeFor[struct{ tagged }](): "is required, and no field of the JSON",
	} {
		if _, err := Of(of); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if of[map[string][]own](t).Checks() || of[json.RawMessage](t).Checks() || of[[]string](t).Checks() || !of[[]*order](t).Checks() {
		t.Error("Checks is wrong")
	}
}

func TestATreeHasAllThatATypeIsMadeOf(t *testing.T) {
	got, err := json.Marshal(of[order](t).Tree())
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"kind":"object","fields":{` +
		`"-":{"kind":"int64"},"Any":{"kind":"any"},"At":{"kind":"time.Time"},"Bytes":{"kind":"base64"},` +
		`"Grid":{"kind":"array[2]","of":{"kind":"array","of":{"kind":"object","fields":{"Count":{"kind":"int64 in a string"},"sku":{"kind":"string","required":true}}}}},` +
		`"IP":{"kind":"net/netip.Addr"},` +
		`"Lines":{"kind":"array","of":{"kind":"object","fields":{"Count":{"kind":"int64 in a string"},"sku":{"kind":"string","required":true}}}},` +
		`"Named":{"kind":"object","fields":{"X":{"kind":"int64"}}},"Odd":{"kind":"int64"},` +
		`"Own":{"kind":"github.com/txoutbox/outbox/internal/shape.own"},"OwnMap":{"kind":"map","of":{"kind":"github.com/txoutbox/outbox/internal/shape.own"}},` +
		`"Prices":{"kind":"map","of":{"kind":"object","fields":{"Cents":{"kind":"int64"}}}},"Raw":{"kind":"JSON"},"Secret":{"kind":"string"},` +
		`"Tree":{"kind":"object","fields":{"Name":{"kind":"string"},"Next":{"kind":"as Tree"},"children":{"kind":"array","of":{"kind":"as Tree"}}}},` +
		`"address":{"kind":"object","fields":{"City":{"kind":"string"},"zip":{"kind":"string","required":true}}},"id":{"kind":"int64","required":true}}}`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
