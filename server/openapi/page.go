package openapi

import (
	"compress/gzip"
	"embed"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/swaggest/swgui/v5/static"
)

// files are the page and what starts the viewer on it.
//
//go:embed page.html init.js
var files embed.FS

// pagePolicy lets the page load nothing from other hosts. The viewer sets styles itself.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler serves /openapi.json, and at /docs Swagger UI, which shows the document and sends requests; / leads there. The
// first request for the document generates it.
func Handler(version string) http.Handler {
	document := sync.OnceValues(func() ([]byte, error) { return Document(version).MarshalJSON() })
	mux := http.NewServeMux()
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		data, err := document()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		writeFile(w, "application/json", data)
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "docs") // relative, since a proxy may serve everything below a path of its own
		w.WriteHeader(http.StatusFound)
	})
	mux.HandleFunc("GET /docs", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", pagePolicy)
		serveOwn(w, "page.html")
	})
	mux.HandleFunc("GET /docs/init.js", func(w http.ResponseWriter, _ *http.Request) { serveOwn(w, "init.js") })
	mux.HandleFunc("GET /docs/{file}", serveViewer)
	return mux
}

// writeFile sends a whole file.
func writeFile(w http.ResponseWriter, media string, data []byte) {
	w.Header().Set("Content-Type", media)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data) // the client may have gone
}

// serveOwn sends one of files.
func serveOwn(w http.ResponseWriter, name string) {
	data, err := files.ReadFile(name)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeFile(w, mime.TypeByExtension(path.Ext(name)), data)
}

// viewerFiles are the files of Swagger UI that the page loads.
var viewerFiles = map[string]string{
	"swagger-ui.css":       "text/css; charset=utf-8",
	"swagger-ui-bundle.js": "text/javascript; charset=utf-8",
}

// serveViewer sends a file of Swagger UI, compressed if the client can read that.
func serveViewer(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	media := viewerFiles[name]
	if media == "" {
		http.NotFound(w, r)
		return
	}
	f, err := static.FS.Open(name + ".gz")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", media)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "max-age=3600")
	w.Header().Set("Vary", "Accept-Encoding")
	var body io.Reader = f
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
	} else if body, err = gzip.NewReader(f); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = io.Copy(w, body) // the client may have gone
}
