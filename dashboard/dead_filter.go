package dashboard

import (
	"net/url"
	"slices"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

// deadFilter is a filter of dead letters, as forms and addresses have it.
type deadFilter struct{ admin.DeadFilter }

func deadFilterOf(q url.Values) (f deadFilter, err error) {
	for _, of := range taskview.Filters {
		if text := q.Get(of.Name); text != "" {
			if err := of.Set(&f.DeadFilter, text); err != nil {
				return f, badRequest("The filter is not valid: " + err.Error() + ".")
			}
		}
	}
	return f, nil
}

// filterField is a field of the form, or of one that repeats the filter.
type filterField struct {
	taskview.Filter
	Value string
}

// Fields are all fields of the form. types are offered, as is each field's present value.
func (f deadFilter) Fields(types []string) (out []filterField) {
	for _, of := range taskview.Filters {
		field := filterField{of, of.Get(f.DeadFilter)}
		if of.Name == "type" {
			for _, t := range types {
				field.Choices = append(field.Choices, taskview.Choice{Value: t, Words: t})
			}
		}
		known := slices.ContainsFunc(field.Choices, func(c taskview.Choice) bool { return c.Value == field.Value })
		if of.Any != "" && field.Value != "" && !known {
			field.Choices = append(slices.Clip(field.Choices), taskview.Choice{Value: field.Value, Words: field.Value})
		}
		out = append(out, field)
	}
	return out
}

// query has the filter as deadFilterOf reads it.
func (f deadFilter) query() url.Values {
	q := url.Values{}
	for _, of := range taskview.Filters {
		if text := of.Get(f.DeadFilter); text != "" {
			q.Set(of.Name, text)
		}
	}
	return q
}

// searches reports whether only the rows tell which pass.
func (f deadFilter) searches() bool {
	f.Type = ""
	return f.Any()
}

// reads reports whether all rows that an index finds have to be read for it.
func (f deadFilter) reads() bool {
	f.OlderThan = 0
	return f.searches()
}

func (f deadFilter) Any() bool { return f.String() != "all" }

// Link is an address with the filter in it, and one value more.
func (f deadFilter) Link(page, key, value string) string {
	q := f.query()
	if value != "" {
		q.Set(key, value)
	}
	return address(page, q)
}
