package taskview

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/txoutbox/outbox/admin"
)

// Filter is a field of admin.Filter as text: a flag of the command line and a field of the
// dashboard's form. "" is no condition.
type Filter struct {
	Name    string
	Label   string // of the form's field
	About   string // the help of the flag
	Any     string // the form's words for ""
	Choices []Choice
	Get     func(f admin.Filter) string
	Set     func(f *admin.Filter, text string) error
}

// Choice is a value that tools offer.
type Choice struct{ Value, Words string }

// Filters are the filters of dead letters that all tools offer.
var Filters = []Filter{
	{
		Name: "type", Label: "Type", About: "of this task type", Any: "all types",
		Get: func(f admin.Filter) string { return f.Type },
		Set: func(f *admin.Filter, text string) error { f.Type = text; return nil },
	},
	{
		Name: "reason", Label: "Reason", About: "that died for: " + strings.Join(reasonNames(), ", "),
		Any: "any reason", Choices: reasons(),
		Get: func(f admin.Filter) string { return f.Reason },
		Set: func(f *admin.Filter, text string) error { f.Reason = text; return nil },
	},
	{
		Name: "error", Label: "Error contains", About: "whose last error contains this text",
		Get: func(f admin.Filter) string { return f.Error },
		Set: setError,
	},
	{
		Name: "older", Label: "Dead for more than", About: "that died at least this long ago, like 720h",
		Any: "any time", Choices: ages(),
		Get: func(f admin.Filter) string { return strings.TrimPrefix(f.OlderThan.String(), "0s") },
		Set: setOlder,
	},
}

func setError(f *admin.Filter, text string) error {
	f.Error = strings.TrimSpace(text)
	if len(text) > 1024 {
		return errors.New("the text of the error is longer than 1 kB")
	}
	return nil
}

func setOlder(f *admin.Filter, text string) error {
	age, err := time.ParseDuration(text)
	if err != nil || age < 0 {
		return fmt.Errorf("%.40q is no age like 24h", text)
	}
	f.OlderThan = age
	return nil
}

func reasonNames() []string { return slices.Sorted(maps.Keys(admin.Reasons())) }

func reasons() (out []Choice) {
	for _, name := range reasonNames() {
		out = append(out, Choice{name, Reason(name)})
	}
	return out
}

func ages() (out []Choice) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		age   time.Duration
		words string
	}{{time.Hour, "1 h"}, {6 * time.Hour, "6 h"}, {day, "24 h"}, {7 * day, "7 d"}, {30 * day, "30 d"}} {
		out = append(out, Choice{c.age.String(), c.words})
	}
	return out
}
