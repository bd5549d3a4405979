package api

import (
	"io"
	"net/http"
	"strconv"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

func fileRoutes() []Route {
	const base = "/v1/sandboxes/{id}/files"
	path := Param{Name: "path", Type: "string", Doc: "absolute, or relative to the work directory", Required: true}
	recursive := Param{Name: "recursive", Type: "boolean", Doc: "include subdirectories"}
	mode := Param{Name: "mode", Type: "string", Doc: "permission bits in octal, like 0644"}
	below := Param{
		Name: "below", Type: "string", Many: true,
		Doc: "a directory that confines the operation: names are relative to it, and a name or link that leads out of it is `denied`; each further value is relative to the one before",
	}
	return addParam(below, append(editRoutes(base, path, mode), []Route{
		{
			Method: "GET", Path: base, Name: "readFile", Tag: "files", Summary: "Read a file",
			Doc:    "The header `Atoll-File-Info` has the description of the file, as JSON.",
			Params: []Param{path, {Name: "offset", Type: "integer", Doc: "offset of the first byte"}}, Reply: Content{Media: wire.MediaBytes}, serve: (*Handler).serveReadFile,
		},
		{
			Method: "PUT", Path: base, Name: "writeFile", Tag: "files", Summary: "Write a file, atomically replacing an existing one",
			Params: []Param{path, mode, {Name: "no_clobber", Type: "boolean", Doc: "fail if the file exists"}, {Name: "sync", Type: "boolean", Doc: "respond when the file is on disk"}},
			Body:   Content{Media: wire.MediaBytes}, Reply: jsonOf[wire.FileInfo](), serve: (*Handler).serveWriteFile,
		},
		{
			Method: "DELETE", Path: base, Name: "removeFile", Tag: "files", Summary: "Delete a file, a link or a directory",
			Params: []Param{path, recursive}, Status: http.StatusNoContent, serve: (*Handler).serveRemoveFile,
		},
		{
			Method: "GET", Path: base + "/stat", Name: "statFile", Tag: "files", Summary: "Get the description of a file, without following a link",
			Params: []Param{path}, Reply: jsonOf[wire.FileInfo](), serve: (*Handler).serveStatFile,
		},
		{
			Method: "GET", Path: base + "/list", Name: "listFiles", Tag: "files", Summary: "List a directory, sorted by path",
			Params: []Param{path, recursive}, Reply: jsonOf[wire.FilesReply](), serve: (*Handler).serveListFiles,
		},
		{
			Method: "POST", Path: base + "/mkdir", Name: "makeDirectory", Tag: "files", Summary: "Create a directory and its missing parents",
			Params: []Param{path, mode}, Status: http.StatusNoContent, serve: (*Handler).serveMkdir,
		},
		{
			Method: "POST", Path: base + "/rename", Name: "renameFile", Tag: "files", Summary: "Move a file or directory",
			Params: []Param{{Name: "from", Type: "string", Required: true}, {Name: "to", Type: "string", Required: true}},
			Status: http.StatusNoContent, serve: (*Handler).serveRename,
		},
		{
			Method: "GET", Path: base + "/tar", Name: "packFiles", Tag: "files", Summary: "Pack a file or directory as a tar stream",
			Doc:    "An incomplete stream ends with the trailer `Atoll-Error`.",
			Params: []Param{path}, Reply: Content{Media: wire.MediaTar}, serve: (*Handler).serveWriteTar,
		},
		{
			Method: "PUT", Path: base + "/tar", Name: "unpackFiles", Tag: "files", Summary: "Unpack a tar stream into a directory",
			Params: []Param{path}, Body: Content{Media: wire.MediaTar}, Status: http.StatusNoContent, serve: (*Handler).serveReadTar,
		},
		{
			Method: "GET", Path: base + "/watch", Name: "watchFiles", Tag: "files", Summary: "Watch a directory for changes",
			Doc:    "The first event is `synced`. The events `created`, `written`, `removed` and `changed` follow; `error` is the last one. " + finalDoc,
			Params: []Param{path, recursive}, Reply: eventsOf[wire.FileEvent](), serve: (*Handler).serveFileWatch,
		},
	}...))
}

// addParam adds a parameter to all routes.
func addParam(p Param, routes []Route) []Route {
	for i := range routes {
		routes[i].Params = append(routes[i].Params, p)
	}
	return routes
}

// maxBelow is the largest number of nested directories that may confine a request. The handler
// opens each of them.
const maxBelow = 16

// requestFiles returns the FS that a request is about.
func (h *Handler) requestFiles(r *http.Request) (atoll.FS, error) {
	below := r.URL.Query()["below"]
	if len(below) > maxBelow {
		return nil, invalidError("parameter below: given %d times, at most %d allowed", len(below), maxBelow)
	}
	sb, err := h.findSandbox(r)
	if err != nil {
		return nil, err
	}
	fs := atoll.Files(sb)
	for _, dir := range below {
		fs = atoll.SubFiles(fs, dir)
	}
	return fs, nil
}

// withFile calls do for the file in the parameter path. read, if not nil, reads the other
// parameters.
func (h *Handler) withFile(r *http.Request, read func(q *queryParams), do func(fs atoll.FS, name string) error) error {
	q := parseQuery(r)
	name := q.getString("path")
	if read != nil {
		read(q)
	}
	if q.err != nil {
		return q.err
	}
	fs, err := h.requestFiles(r)
	if err != nil {
		return err
	}
	return do(fs, name)
}

func (h *Handler) serveStatFile(w http.ResponseWriter, r *http.Request) error {
	return h.withFile(r, nil, func(fs atoll.FS, name string) error {
		fi, err := fs.Stat(r.Context(), name)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, wire.NewFileInfo(fi))
		return nil
	})
}

func (h *Handler) serveListFiles(w http.ResponseWriter, r *http.Request) error {
	var recursive bool
	return h.withFile(r, func(q *queryParams) { recursive = q.getBool("recursive") }, func(fs atoll.FS, name string) error {
		all, err := fs.List(r.Context(), name, recursive)
		if err != nil {
			return err
		}
		reply := wire.FilesReply{Files: make([]wire.FileInfo, len(all))}
		for i, fi := range all {
			reply.Files[i] = wire.NewFileInfo(fi)
		}
		writeJSON(w, http.StatusOK, reply)
		return nil
	})
}

func (h *Handler) serveMkdir(w http.ResponseWriter, r *http.Request) error {
	var mode uint32
	return h.withFile(r, func(q *queryParams) { mode = q.getMode("mode") }, func(fs atoll.FS, name string) error {
		if err := fs.Mkdir(r.Context(), name, mode); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}

func (h *Handler) serveRename(w http.ResponseWriter, r *http.Request) error {
	q := parseQuery(r)
	from, to := q.getString("from"), q.getString("to")
	fs, err := h.requestFiles(r)
	if err != nil {
		return err
	}
	if err := fs.Rename(r.Context(), from, to); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h *Handler) serveRemoveFile(w http.ResponseWriter, r *http.Request) error {
	var recursive bool
	return h.withFile(r, func(q *queryParams) { recursive = q.getBool("recursive") }, func(fs atoll.FS, name string) error {
		if err := fs.Remove(r.Context(), name, recursive); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}

// serveReadFile sends the size of the open file first, so that the kernel can copy the content and
// the client detects a truncated body.
func (h *Handler) serveReadFile(w http.ResponseWriter, r *http.Request) error {
	var offset int64
	return h.withFile(r, func(q *queryParams) { offset = q.getInt("offset", 0) }, func(fs atoll.FS, name string) error {
		file, fi, err := fs.Read(r.Context(), name, offset)
		if err != nil {
			return err
		}
		defer file.Close()
		header := w.Header()
		header.Set("Content-Type", wire.MediaBytes)
		header.Set(wire.FileInfoHeader, wire.ASCIIJSON(wire.NewFileInfo(fi)))
		var src io.Reader = file
		if fi.Type == atoll.TypeFile && fi.Size > 0 { // files in /proc and /sys have size 0
			left := max(fi.Size-offset, 0)
			header.Set("Content-Length", strconv.FormatInt(left, 10))
			src = io.LimitReader(file, left)
		}
		if _, err := copyBody(w, src); err != nil {
			return h.abortResponse(r, err)
		}
		return nil
	})
}

func (h *Handler) serveWriteFile(w http.ResponseWriter, r *http.Request) error {
	var opts atoll.WriteOptions
	read := func(q *queryParams) {
		opts = atoll.WriteOptions{Mode: q.getMode("mode"), NoClobber: q.getBool("no_clobber"), Sync: q.getBool("sync")}
	}
	return h.withFile(r, read, func(fs atoll.FS, name string) error {
		fi, err := fs.Write(r.Context(), name, h.uploadBody(w, r), opts)
		if err != nil {
			return preferTooLarge(err)
		}
		writeJSON(w, http.StatusOK, wire.NewFileInfo(fi))
		return nil
	})
}

func (h *Handler) serveWriteTar(w http.ResponseWriter, r *http.Request) error {
	return h.withFile(r, nil, func(fs atoll.FS, name string) error {
		out := &tarWriter{w: w}
		err := fs.WriteTar(r.Context(), name, out)
		if err != nil && !out.begun {
			return err
		}
		out.writeHeader()
		if err != nil {
			w.Header().Set(wire.ErrorTrailer, wire.ASCIIJSON(wire.EncodeError(err, wire.RequestID(r.Context()))))
		}
		return alreadyAnswered(err)
	})
}

// A tarWriter sends the response header before the first bytes.
type tarWriter struct {
	w     http.ResponseWriter
	begun bool
}

func (t *tarWriter) writeHeader() {
	if t.begun {
		return
	}
	t.begun = true
	t.w.Header().Set("Content-Type", wire.MediaTar)
	t.w.Header().Set("Trailer", wire.ErrorTrailer)
	t.w.WriteHeader(http.StatusOK)
}

func (t *tarWriter) Write(p []byte) (int, error) {
	t.writeHeader()
	return t.w.Write(p)
}

func (h *Handler) serveReadTar(w http.ResponseWriter, r *http.Request) error {
	return h.withFile(r, nil, func(fs atoll.FS, name string) error {
		if err := fs.ReadTar(r.Context(), name, h.uploadBody(w, r)); err != nil {
			return preferTooLarge(err)
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}
