package dashboard

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

// htmx.min.js is dist/htmx.min.js of the npm package htmx.org, version 2.0.11, and
// idiomorph-ext.min.js dist/idiomorph-ext.min.js of idiomorph, version 0.7.4, both unchanged. Their
// licence (0BSD) is in htmx.LICENSE.
//
//go:embed static templates
var files embed.FS

// staticFile is a file whose address has a hash of its content, so it never changes.
type staticFile struct {
	contentType string
	content     []byte
}

func (f staticFile) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", f.contentType)
	w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.content))
}

var (
	static = map[string]staticFile{} // by the name in their address
	urls   = map[string]string{}     // by the name of the file
	pages  = parsePages()
)

func init() {
	const script = "text/javascript; charset=utf-8"
	for name, contentType := range map[string]string{
		"htmx.min.js": script, "idiomorph-ext.min.js": script, "dashboard.js": script,
		"dashboard.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml",
	} {
		content, err := files.ReadFile("static/" + name)
		if err != nil {
			panic(err)
		}
		sum, ext := sha256.Sum256(content), path.Ext(name)
		to := fmt.Sprintf("static-%s-%x%s", strings.TrimSuffix(name, ext), sum[:6], ext)
		static[to], urls[name] = staticFile{contentType, content}, "./"+to
	}
}

func parsePages() map[string]*template.Template {
	base := template.Must(template.New("").Funcs(functions).ParseFS(files, "templates/base.html",
		"templates/parts.html"))
	found, err := files.ReadDir("templates")
	if err != nil {
		panic(err)
	}
	out := map[string]*template.Template{}
	for _, f := range found {
		if name := f.Name(); name != "base.html" && name != "parts.html" {
			out[name] = template.Must(template.Must(base.Clone()).ParseFS(files, "templates/"+name))
		}
	}
	return out
}

var functions = template.FuncMap{
	"static": func(name string) string { return urls[name] },
	"v":      visible,
	"n":      number,
	"f":      decimal,
	"ago":    ago,
	"dur":    duration,
	"stamp":  stamp,
	"iso":    func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"line":   firstLine,
	"taskOf": taskOf,
	"at":     func(now, t time.Time) moment { return moment{t, now} },
	"plural": func(n int64, one, many string) string {
		if n == 1 {
			return one
		}
		return many
	},
	"runs":     runsOf,
	"reason":   taskview.Reason,
	"failing":  taskview.Failing,
	"timed":    timed,
	"timeName": timeName,
	"attempts": taskview.Attempts,
	"state":    taskview.State,
	"columns":  taskview.Columns,
	"title":    title,
	"for":      func(now, since time.Time) string { return duration(max(now.Sub(since), 0).Truncate(time.Second)) },
	"ranges":   func() any { return ranges },
}

// moment is a time, to be shown as seen from another.
type moment struct{ Time, Now time.Time }

// visible escapes control characters, characters that change the direction of writing, and characters
// without a width.
func visible(s string) string {
	quoted := strconv.QuoteToGraphic(s)
	return strings.NewReplacer(`\"`, `"`, `\\`, `\`, `\n`, "\n", `\t`, "\t").Replace(quoted[1 : len(quoted)-1])
}

// timed is the time of a task that lists show, as timeName has it.
func timed(t admin.Task) time.Time {
	switch {
	case !t.EndedAt.IsZero():
		return t.EndedAt
	case t.State == admin.StateLeased && !t.AttemptedAt.IsZero():
		return t.AttemptedAt
	}
	return t.RunAt
}

// timeName is the name of the time in a list of a state ("": of all).
func timeName(s admin.State) string {
	switch s {
	case "":
		return "Due, began or ended"
	case admin.StateDead:
		return "Died"
	case admin.StateFinished:
		return "Finished"
	case admin.StateLeased:
		return "Began"
	}
	return "Due"
}

func title(name string) string { return strings.ToUpper(name[:1]) + name[1:] }

// taskOf is the id of the task that an audit entry is about; "" for none.
func taskOf(target string) string {
	rest, ok := strings.CutPrefix(target, "task ")
	id, _, _ := strings.Cut(rest, " ")
	if _, err := strconv.ParseInt(id, 10, 64); !ok || err != nil {
		return ""
	}
	return id
}

// firstLine is the beginning of a text, for a table.
func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	if r := []rune(s); len(r) > 160 {
		s = string(r[:160]) + "…"
	}
	return visible(s)
}

// number is an int or int64 with commas between thousands.
func number(v any) string {
	s := fmt.Sprint(v)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// decimal has two digits at most behind the point where a number is small.
func decimal(f float64) string {
	switch {
	case f >= 100 || f == math.Trunc(f):
		return number(int64(math.Round(f)))
	case f >= 10:
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return strconv.FormatFloat(f, 'f', 2, 64)
}

// duration is a length of time in one or two units.
func duration(d time.Duration) string {
	switch d = d.Abs(); {
	case d == 0:
		return "0 s"
	case d < time.Second:
		return fmt.Sprintf("%d ms", max(d.Milliseconds(), 1))
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		if m := int(d.Minutes()) % 60; m > 0 && d < 10*time.Hour {
			return fmt.Sprintf("%d h %d min", int(d.Hours()), m)
		}
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%s d", number(int64(d.Hours()/24)))
}

// ago says when a moment was or will be.
func ago(m moment) string {
	switch d := m.Now.Sub(m.Time); {
	case d < -time.Second:
		return "in " + duration(d)
	case d < 2*time.Second:
		return "now"
	default:
		return duration(d) + " ago"
	}
}

// runsOf are the runs of a relay by type, as seen from a time, and how many types are left out.
func runsOf(now time.Time, r admin.Relay) any {
	by := taskview.RunsByType(r)
	shown := min(len(by), 20)
	return struct {
		Now  time.Time
		Runs []taskview.TypeRuns
		More int
	}{now, by[:shown], len(by) - shown}
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// The ranges that charts can show.
var ranges = []struct {
	Name string
	Span time.Duration
	Text string
}{{"1h", time.Hour, "1 hour"}, {"6h", 6 * time.Hour, "6 hours"}, {"24h", 24 * time.Hour, "24 hours"}}
