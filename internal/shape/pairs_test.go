package shape

import (
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/needs"
)

type color int

func (c color) MarshalText() ([]byte, error) { return []byte([]string{"red", "green"}[c&1]), nil }

func (c *color) UnmarshalText(text []byte) error {
	*c = color(slices.Index([]string{"red", "green"}, string(text)))
	if *c < 0 {
		return fmt.Errorf("no color")
	}
	return nil
}

type writeOnly struct{ A int }

func (w writeOnly) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, `"%d"`, w.A), nil }

type hex byte

func (h hex) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%02x", byte(h)), nil }

func (h *hex) UnmarshalText(text []byte) error {
	_, err := fmt.Sscanf(string(text), "%02x", (*byte)(h))
	return err
}

type inner struct{ A int }

type Outer struct {
	A int `json:",omitempty"`
	B string
}

var leaves = []reflect.Type{
	reflect.TypeFor[int](), reflect.TypeFor[int8](), reflect.TypeFor[int16](), reflect.TypeFor[int32](), reflect.TypeFor[int64](),
	reflect.TypeFor[uint](), reflect.TypeFor[uint8](), reflect.TypeFor[uint16](), reflect.TypeFor[uint32](), reflect.TypeFor[uint64](),
	reflect.TypeFor[float32](), reflect.TypeFor[float64](), reflect.TypeFor[bool](), reflect.TypeFor[string](), reflect.TypeFor[[]byte](),
	reflect.TypeFor[any](), reflect.TypeFor[json.RawMessage](), reflect.TypeFor[json.Number](), reflect.TypeFor[time.Time](),
	reflect.TypeFor[time.Duration](), reflect.TypeFor[netip.Addr](), reflect.TypeFor[big.Int](), reflect.TypeFor[color](), reflect.TypeFor[writeOnly](),
	reflect.TypeFor[[]hex](), reflect.TypeFor[hex](), reflect.TypeFor[fmt.Stringer](), reflect.TypeFor[Outer](), reflect.TypeFor[inner](),
	reflect.TypeFor[struct{ inner }](), reflect.TypeFor[struct{ *inner }](), reflect.TypeFor[struct{ Outer }](), reflect.TypeFor[struct {
		*Outer
		A int32
	}](), reflect.TypeFor[struct{ time.Time }](), reflect.TypeFor[node](),
}

var keys = []reflect.Type{
	reflect.TypeFor[string](), reflect.TypeFor[int8](), reflect.TypeFor[int](), reflect.TypeFor[uint16](), reflect.TypeFor[uint64](),
	reflect.TypeFor[color](), reflect.TypeFor[time.Time](), reflect.TypeFor[json.Number](), reflect.TypeFor[netip.Addr](),
}

var tags = []string{"a", "A", "b", "id", "ID", "iD", "s", "ſ", "S", "a.b", "*", "a[]", "#", "x y"}

// sketch is what a type is made of, so that another can be made that differs from it in little.
type sketch struct {
	kind   reflect.Kind // Invalid: the leaf
	leaf   reflect.Type
	key    reflect.Type
	length int
	of     []sketch
	tags   []string // of the fields
}

func draw(r *rand.Rand, depth int) sketch {
	s := sketch{leaf: leaves[r.IntN(len(leaves))], key: keys[r.IntN(len(keys))], length: r.IntN(4)}
	if depth == 0 || r.IntN(3) == 0 {
		return s
	}
	s.kind = []reflect.Kind{reflect.Struct, reflect.Struct, reflect.Struct, reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map}[r.IntN(7)]
	n := 1
	if s.kind == reflect.Struct {
		n = r.IntN(4)
	}
	for range n {
		s.of = append(s.of, draw(r, depth-1))
		s.tags = append(s.tags, tags[r.IntN(len(tags))]+[]string{"", "", ",string", ",omitempty", ",omitzero", ",string,omitempty"}[r.IntN(6)])
	}
	return s
}

// redraw changes a sketch here and there.
func redraw(r *rand.Rand, s sketch, depth int) sketch {
	s.of, s.tags = slices.Clone(s.of), slices.Clone(s.tags)
	for i := range s.of {
		s.of[i] = redraw(r, s.of[i], depth-1)
	}
	switch other := draw(r, max(depth, 0)); r.IntN(14) {
	case 0:
		return other
	case 1:
		s.leaf = other.leaf
	case 2:
		s.key = other.key
	case 3:
		s.length = other.length
	case 4:
		return sketch{kind: reflect.Pointer, of: []sketch{s}}
	case 5:
		if s.kind == reflect.Struct {
			s.of, s.tags = append(s.of, other), append(s.tags, tags[r.IntN(len(tags))])
		}
	case 6:
		if len(s.tags) > 0 {
			s.tags[0] = tags[r.IntN(len(tags))]
		}
	case 7:
		if s.kind == reflect.Slice || s.kind == reflect.Array {
			s.kind = []reflect.Kind{reflect.Slice, reflect.Array}[r.IntN(2)]
		}
	case 8:
		if len(s.tags) > 0 {
			name, _, _ := strings.Cut(s.tags[0], ",")
			s.tags[0] = name + ",string"
		}
	}
	return s
}

func (s sketch) build() reflect.Type {
	switch s.kind {
	case reflect.Pointer:
		return reflect.PointerTo(s.of[0].build())
	case reflect.Slice:
		return reflect.SliceOf(s.of[0].build())
	case reflect.Array:
		return reflect.ArrayOf(s.length, s.of[0].build())
	case reflect.Map:
		return reflect.MapOf(s.key, s.of[0].build())
	case reflect.Struct:
		var fields []reflect.StructField
		for i, one := range s.of {
			fields = append(fields, reflect.StructField{Name: fmt.Sprintf("F%d", i), Type: one.build(),
				Tag: reflect.StructTag(fmt.Sprintf("json:%q", s.tags[i]))})
		}
		return reflect.StructOf(fields)
	}
	return s.leaf
}

// decoded is a payload as a type decodes and encodes it.
func decoded(payload []byte, as reflect.Type) ([]byte, error) {
	v := reflect.New(as)
	if err := json.Unmarshal(payload, v.Interface()); err != nil {
		return nil, err
	}
	return json.Marshal(v.Interface())
}

// Of thousands of pairs of types, those that break nothing hold each other's payloads.
func TestPairsOfTypesThatBreakNothingLoseNothing(t *testing.T) {
	r, pairs := rand.New(rand.NewPCG(3, 4)), 4_000
	if needs.InCI() {
		r, pairs = rand.New(rand.NewPCG(5, 6)), 60_000
	}
	passed, changed, refused := 0, 0, 0
	for range pairs {
		drawn := draw(r, 3)
		before := drawn.build()
		after := redraw(r, drawn, 2).build()
		was, err := Of(before)
		if err != nil {
			t.Fatal(err)
		}
		is, err := Of(after)
		if err != nil {
			t.Fatal(err)
		}
		if faults := Breaks(was.Tree(), was.Tree()); len(faults) > 0 {
			t.Fatalf("%v breaks itself: %q", before, faults)
		}
		if len(Breaks(was.Tree(), is.Tree())) > 0 {
			refused++
			continue
		}
		passed++
		if before != after {
			changed++
		}
		for range 10 {
			v := reflect.New(before)
			fill(r, v.Elem(), 6)
			payload, err := json.Marshal(v.Interface())
			if err != nil {
				continue
			}
			itself, err := decoded(payload, before)
			if err != nil || !holds(document(t, payload), document(t, itself)) {
				continue // as before the change
			}
			now, err := decoded(payload, after)
			if err != nil {
				t.Fatalf("%v, now %v: %s: %v", before, after, payload, err)
			}
			if !holds(document(t, payload), document(t, now)) {
				t.Fatalf("%v, now %v: %s became %s", before, after, payload, now)
			}
		}
	}
	if passed < pairs/8 || changed < pairs/16 || refused < pairs/8 {
		t.Errorf("%d pairs passed, %d of them of two types, %d were refused: too few", passed, changed, refused)
	}
}
