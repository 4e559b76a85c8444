package shape

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// candidate is a field of a struct, or of an embedded struct, with the options of its json tag.
type candidate struct {
	field   reflect.StructField
	name    string
	tagged  bool // the name is the tag's
	quoted  bool // its value is in a string
	omitted bool // if it is empty or zero
	// An error of encoding/json: it is in an embedded pointer to an unexported struct.
	unsettable bool
}

// fieldsOf are the fields that encoding/json decodes, by name. Of those with one name the least
// deep one counts, then the one whose tag says the name; if there are several, none. lost are the
// fields that a tag requires, though encoding/json never decodes them.
func fieldsOf(t reflect.Type) (out []candidate, lost []reflect.StructField) {
	found := map[string][]candidate{}
	visited := map[reflect.Type]bool{}
	type part struct {
		of         reflect.Type
		unsettable bool
	}
	for level := []part{{of: t}}; len(level) > 0; {
		here := map[string][]candidate{}
		var next []part
		for _, one := range level {
			for i := range one.of.NumField() {
				f := one.of.Field(i)
				unsettable := one.unsettable || !f.IsExported() && f.Type.Kind() == reflect.Pointer
				c, embedded := read(f)
				if c == nil && f.Tag.Get(tag) != "" {
					lost = append(lost, f)
				}
				if embedded != nil {
					next = append(next, part{embedded, unsettable})
				}
				if c != nil {
					c.unsettable = unsettable
					here[c.name] = append(here[c.name], *c)
				}
			}
		}
		for _, one := range level {
			visited[one.of] = true
		}
		for name, all := range here {
			if found[name] == nil {
				found[name] = all
			}
		}
		level = slices.DeleteFunc(next, func(p part) bool { return visited[p.of] })
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		all := found[name]
		if tagged := slices.DeleteFunc(slices.Clone(all), func(c candidate) bool { return !c.tagged }); len(tagged) > 0 {
			all = tagged
		}
		if len(all) == 1 {
			out = append(out, all[0])
		}
	}
	return out, lost
}

// read returns a field of a struct as a candidate or as an embedded struct, or neither.
func read(f reflect.StructField) (*candidate, reflect.Type) {
	of := f.Type
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if !f.IsExported() && !(f.Anonymous && of.Kind() == reflect.Struct) {
		return nil, nil
	}
	text := f.Tag.Get("json")
	if text == "-" {
		return nil, nil
	}
	name, options, _ := strings.Cut(text, ",")
	if !validName(name) {
		name = ""
	}
	if f.Anonymous && name == "" && of.Kind() == reflect.Struct {
		return nil, of
	}
	c := &candidate{field: f, name: name, tagged: name != ""}
	if name == "" {
		c.name = f.Name
	}
	if f.Type.Kind() != reflect.Pointer || f.Type.Name() != "" {
		of = f.Type
	}
	for option := range strings.SplitSeq(options, ",") {
		c.quoted = c.quoted || option == "string" && quotable(of.Kind())
		c.omitted = c.omitted || option == "omitempty" || option == "omitzero"
	}
	return c, nil
}

// quotable reports whether the option string of a json tag has an effect.
func quotable(k reflect.Kind) bool {
	return reflect.Bool <= k && k <= reflect.Float64 || k == reflect.String
}

// validName reports whether encoding/json takes the name of a tag.
func validName(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool {
		return !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
}
