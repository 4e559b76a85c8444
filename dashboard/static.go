package dashboard

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"path"
	"strings"
	"time"
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
