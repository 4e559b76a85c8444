package shape

import (
	"bytes"
	"encoding/json"
	"math"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// fill sets a value to one that types hold worst.
func fill(r *rand.Rand, v reflect.Value, depth int) {
	set := func(x any) { v.Set(reflect.ValueOf(x)) }
	switch v.Type() {
	case reflect.TypeFor[any]():
		set(pick[any](r, 0.1, 1e300, "text", true, map[string]any{"a": 1.0}, []any{"b"}))
		return
	case reflect.TypeFor[json.RawMessage]():
		set(pick(r, json.RawMessage(`12345678901234567890`), json.RawMessage(`1e400`), json.RawMessage(`{"a": [0.1]}`), json.RawMessage(`"text"`)))
		return
	case reflect.TypeFor[json.Number]():
		set(pick(r, json.Number("0"), json.Number("1234567890123456789.5"), json.Number("-1e400")))
		return
	case reflect.TypeFor[time.Time]():
		set(pick(r, time.Time{}, time.Unix(1e9, 123456789).UTC()))
		return
	case reflect.TypeFor[netip.Addr]():
		set(pick(r, netip.MustParseAddr("::1%eth0"), netip.MustParseAddr("10.0.0.1")))
		return
	case reflect.TypeFor[big.Int]():
		set(*new(big.Int).Lsh(big.NewInt(3), 100))
		return
	}
	if !v.CanSet() {
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(r.IntN(2) > 0)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		bits := v.Type().Bits()
		v.SetInt(pick(r, int64(0), math.MinInt64>>(64-bits), math.MaxInt64>>(64-bits)))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(pick(r, 0, uint64(math.MaxUint64)>>(64-v.Type().Bits())))
	case reflect.Float32:
		v.SetFloat(pick(r, 0, 0.1, math.MaxFloat32, 1<<24-1))
	case reflect.Float64:
		v.SetFloat(pick(r, 0, 0.1, math.MaxFloat64, 1<<53-1))
	case reflect.String:
		v.SetString(pick(r, "", "text <é\u2028", "5", "null"))
	case reflect.Pointer:
		if depth > 0 && r.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(r, v.Elem(), depth-1)
		}
	case reflect.Slice:
		if depth > 0 {
			v.Set(reflect.MakeSlice(v.Type(), r.IntN(5), 5))
		}
		for i := range v.Len() {
			fill(r, v.Index(i), depth-1)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(r, v.Index(i), depth-1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range r.IntN(3) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(r, key, depth-1)
			fill(r, value, depth-1)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(r, v.Field(i), depth-1)
		}
	}
}

func document(t *testing.T, text []byte) any {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// holds reports whether a document has all that another has. A null may have become any value, and
// a zero value may be left out.
func holds(old, now any) bool {
	switch old := old.(type) {
	case nil:
		return true
	case json.Number:
		now, ok := now.(json.Number)
		return ok && same(old, now)
	case []any:
		all, ok := now.([]any)
		if !ok || len(all) < len(old) {
			return len(old) == 0 && now == nil
		}
		for i := range old {
			if !holds(old[i], all[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		all, ok := now.(map[string]any)
		if !ok {
			return empty(old) && now == nil
		}
		for name, one := range old {
			other, ok := all[name]
			for alike, value := range all {
				if !ok && strings.EqualFold(name, alike) {
					other, ok = value, true
				}
			}
			if !ok && !empty(one) || ok && !holds(one, other) {
				return false
			}
		}
		return true
	}
	return old == now
}

func same(a, b json.Number) bool {
	if a == b {
		return true
	}
	x, _, err := big.ParseFloat(string(a), 10, 2000, big.ToNearestEven)
	y, _, err2 := big.ParseFloat(string(b), 10, 2000, big.ToNearestEven)
	return err == nil && err2 == nil && x.Cmp(y) == 0
}

func empty(v any) bool {
	switch v := v.(type) {
	case json.Number:
		return same(v, "0")
	case []any:
		return !slices.ContainsFunc(v, func(one any) bool { return !empty(one) })
	case map[string]any:
		for _, one := range v {
			if !empty(one) {
				return false
			}
		}
		return true
	}
	return v == nil || v == "" || v == "0" || v == "null" || v == `""` || v == false || v == "false" || v == "0001-01-01T00:00:00Z"
}
