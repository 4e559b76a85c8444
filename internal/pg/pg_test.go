package pg

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/faultmap"
)

// values are those of a session as settingsSQL returns them, with the given ones in place of
// PostgreSQL's defaults.
func values(changed map[string]string) (out []string) {
	for _, name := range slices.Concat([]string{"jit", "jit_above_cost"}, limiting, planning) {
		value := map[bool]string{true: "0", false: "on"}[slices.Contains(limiting, name)]
		if name == "jit_above_cost" {
			value = "100000"
		}
		if v, ok := changed[name]; ok {
			value = v
		}
		out = append(out, value)
	}
	return out
}

func TestTheTableOfSettingsIsWhatTheCodeSays(t *testing.T) {
	set := "SET LOCAL transaction_timeout = 0; " + guards // untimed, where the server has the setting
	tabled := map[string]bool{}
	for _, row := range faultmap.Table(t, "Settings") {
		bad, good, ok := strings.Cut(map[string]string{
			"below 10 s": "9s 10s", "below 100000, with jit on": "99999 100000", "off": "off on",
		}[row["hinders a relay"]], " ")
		need, known := map[string]string{"0": " = 0", "10 s": " = 10000", "on": " = on", "jit off": ""}[row["set for its own statements"]]
		if !ok || !known {
			t.Errorf("no test of the row %v", row)
			continue
		}
		for name := range strings.SplitSeq(row["setting"], ", ") {
			tabled[name] = true
			if !hostile(values(map[string]string{name: bad})) || hostile(values(map[string]string{name: good})) {
				t.Errorf("%s is not judged as in the table", name)
			}
			statement := "SET LOCAL " + name + need
			if need == "" {
				statement = "SET LOCAL jit = off"
			}
			if !slices.Contains(strings.Split(set, "; "), statement) {
				t.Errorf("%q is not in %s", statement, set)
			}
		}
	}
	want := slices.Sorted(slices.Values(slices.Concat([]string{"jit_above_cost"}, limiting, planning)))
	if got := slices.Sorted(maps.Keys(tabled)); !slices.Equal(got, want) {
		t.Errorf("the table has %v, the code %v", got, want)
	}
	if hostile(values(nil)) || hostile(values(map[string]string{"jit": "off", "jit_above_cost": "0"})) {
		t.Error("settings that hinder nobody are judged as such that do")
	}
}

func TestArgumentsAreLiteralsInTheText(t *testing.T) {
	t.Parallel()
	args, err := driverValues([]any{1, "it's", nil, `back\slash`, true, "", "$1", "", "", "tenth"})
	if err != nil {
		t.Fatal(err)
	}
	const query = "SELECT $1, $10, $2::text, ($3), $4 || $5, $7$6"
	const want = `SELECT '1', 'tenth', 'it''s'::text, (NULL),  E'back\\slash' || 'true', '$1'''`
	if got := inline(query, args); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := inline(query, nil); got != query {
		t.Errorf("without arguments it is %s", got)
	}
}
