package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
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
	return addParam(below, []Route{
		{
			Method: "GET", Path: base, Name: "readFile", Tag: "files", Summary: "Read a file",
			Doc:    "The header `Atoll-File-Info` has the description of the file, as JSON.",
			Params: []Param{path, {Name: "offset", Type: "integer", Doc: "offset of the first byte"}}, Reply: Content{Media: mediaBytes}, serve: (*Handler).serveReadFile,
		},
		{
			Method: "PUT", Path: base, Name: "writeFile", Tag: "files", Summary: "Write a file, atomically replacing an existing one",
			Params: []Param{path, mode, {Name: "no_clobber", Type: "boolean", Doc: "fail if the file exists"}, {Name: "sync", Type: "boolean", Doc: "respond when the file is on disk"}},
			Body:   Content{Media: mediaBytes}, Reply: jsonOf[fileInfo](), serve: (*Handler).serveWriteFile,
		},
		{
			Method: "DELETE", Path: base, Name: "removeFile", Tag: "files", Summary: "Delete a file, a link or a directory",
			Params: []Param{path, recursive}, Status: http.StatusNoContent, serve: (*Handler).serveRemoveFile,
		},
		{
			Method: "GET", Path: base + "/stat", Name: "statFile", Tag: "files", Summary: "Get the description of a file, without following a link",
			Params: []Param{path}, Reply: jsonOf[fileInfo](), serve: (*Handler).serveStatFile,
		},
		{
			Method: "GET", Path: base + "/list", Name: "listFiles", Tag: "files", Summary: "List a directory, sorted by path",
			Params: []Param{path, recursive}, Reply: jsonOf[filesReply](), serve: (*Handler).serveListFiles,
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
			Params: []Param{path}, Reply: Content{Media: mediaTar}, serve: (*Handler).serveWriteTar,
		},
		{
			Method: "PUT", Path: base + "/tar", Name: "unpackFiles", Tag: "files", Summary: "Unpack a tar stream into a directory",
			Params: []Param{path}, Body: Content{Media: mediaTar}, Status: http.StatusNoContent, serve: (*Handler).serveReadTar,
		},
		{
			Method: "GET", Path: base + "/watch", Name: "watchFiles", Tag: "files", Summary: "Watch a directory for changes",
			Doc:    "The first event is `synced`. The events `created`, `written`, `removed` and `changed` follow; `error` is the last one.",
			Params: []Param{path, recursive}, Reply: eventsOf[fileEvent](), serve: (*Handler).serveFileWatch,
		},
	})
}

// addParam adds a parameter to all routes.
func addParam(p Param, routes []Route) []Route {
	for i := range routes {
		routes[i].Params = append(routes[i].Params, p)
	}
	return routes
}

// A fileInfo is the JSON form of an atoll.FileInfo. A name that is not UTF-8 is also sent in
// base64.
type fileInfo struct {
	atoll.FileInfo
	NameB64   []byte `json:"name_b64,omitempty"`
	PathB64   []byte `json:"path_b64,omitempty"`
	TargetB64 []byte `json:"target_b64,omitempty"`
}

func newFileInfo(fi atoll.FileInfo) fileInfo {
	return fileInfo{fi, bytesUnlessUTF8(fi.Name), bytesUnlessUTF8(fi.Path), bytesUnlessUTF8(fi.Target)}
}

func bytesUnlessUTF8(s string) []byte {
	if utf8.ValidString(s) {
		return nil
	}
	return []byte(s)
}

func (w fileInfo) ToFileInfo() atoll.FileInfo {
	fi := w.FileInfo
	for _, f := range []struct {
		to   *string
		from []byte
	}{{&fi.Name, w.NameB64}, {&fi.Path, w.PathB64}, {&fi.Target, w.TargetB64}} {
		if f.from != nil {
			*f.to = string(f.from)
		}
	}
	return fi
}

// A fileEvent is the JSON form of an atoll.FileEvent.
type fileEvent struct {
	atoll.FileEvent
	PathB64 []byte `json:"path_b64,omitempty"`
}

func newFileEvent(ev atoll.FileEvent) fileEvent { return fileEvent{ev, bytesUnlessUTF8(ev.Path)} }

func (w fileEvent) ToFileEvent() atoll.FileEvent {
	if w.PathB64 != nil {
		w.Path = string(w.PathB64)
	}
	return w.FileEvent
}

type filesReply struct {
	Files []fileInfo `json:"files"`
}

// files is the client's FS of a sandbox.
type files struct {
	sb    *sandbox
	below []string // directories that confine it, each relative to the one before
}

// Files implements atoll.Filer.
func (s *sandbox) Files() atoll.FS { return files{sb: s} }

// Sub implements atoll.SubFS. A server without support for it refuses the requests.
func (f files) Sub(dir string) atoll.FS {
	return files{f.sb, append(slices.Clip(f.below), dir)}
}

// fileQuery returns the query of a request about the file name.
func (f files) fileQuery(name string) url.Values { return f.addBelow(url.Values{"path": {name}}) }

// addBelow adds the directories that confine f to a query.
func (f files) addBelow(q url.Values) url.Values {
	if len(f.below) > 0 {
		q["below"] = f.below
	}
	return q
}

// callFiles makes a request below the path of the sandbox's files.
func (f files) callFiles(ctx context.Context, q call) error {
	q.path = "/files" + q.path
	return f.sb.callSandbox(ctx, q)
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
		writeJSON(w, http.StatusOK, newFileInfo(fi))
		return nil
	})
}

// Stat implements atoll.FS.
func (f files) Stat(ctx context.Context, name string) (atoll.FileInfo, error) {
	var fi fileInfo
	err := f.callFiles(ctx, call{op: "stat", path: "/stat", query: f.fileQuery(name), reply: &fi})
	return fi.ToFileInfo(), err
}

func (h *Handler) serveListFiles(w http.ResponseWriter, r *http.Request) error {
	var recursive bool
	return h.withFile(r, func(q *queryParams) { recursive = q.getBool("recursive") }, func(fs atoll.FS, name string) error {
		all, err := fs.List(r.Context(), name, recursive)
		if err != nil {
			return err
		}
		reply := filesReply{make([]fileInfo, len(all))}
		for i, fi := range all {
			reply.Files[i] = newFileInfo(fi)
		}
		writeJSON(w, http.StatusOK, reply)
		return nil
	})
}

// List implements atoll.FS.
func (f files) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	q := f.fileQuery(name)
	if recursive {
		q.Set("recursive", "true")
	}
	var reply filesReply
	if err := f.callFiles(ctx, call{op: "list", path: "/list", query: q, reply: &reply, replyLimit: maxListReply}); err != nil {
		return nil, err
	}
	all := make([]atoll.FileInfo, len(reply.Files))
	for i, fi := range reply.Files {
		all[i] = fi.ToFileInfo()
	}
	return all, nil
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

// Mkdir implements atoll.FS.
func (f files) Mkdir(ctx context.Context, name string, mode uint32) error {
	q := f.fileQuery(name)
	if mode != 0 {
		q.Set("mode", formatMode(mode))
	}
	return f.callFiles(ctx, call{op: "mkdir", method: "POST", path: "/mkdir", query: q})
}

func formatMode(mode uint32) string { return fmt.Sprintf("%04o", mode) }

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

// Rename implements atoll.FS.
func (f files) Rename(ctx context.Context, from, to string) error {
	return f.callFiles(ctx, call{op: "rename", method: "POST", path: "/rename", query: f.addBelow(url.Values{"from": {from}, "to": {to}})})
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

// Remove implements atoll.FS.
func (f files) Remove(ctx context.Context, name string, recursive bool) error {
	q := f.fileQuery(name)
	if recursive {
		q.Set("recursive", "true")
	}
	return f.callFiles(ctx, call{op: "remove", method: "DELETE", query: q})
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
		header.Set("Content-Type", mediaBytes)
		header.Set(FileInfoHeader, asciiJSON(newFileInfo(fi)))
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

// Read implements atoll.FS. ctx bounds only the opening of the file.
func (f files) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	q := call{op: "read", id: f.sb.id, path: f.sb.path + "/files", query: f.fileQuery(name)}
	if offset != 0 {
		q.query.Set("offset", strconv.FormatInt(offset, 10))
	}
	if err := ctx.Err(); err != nil {
		return nil, atoll.FileInfo{}, err
	}
	readCtx, cancel := f.sb.c.joinContext(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	resp, err := f.sb.c.sendRetrying(readCtx, q)
	if err == nil && !stop() {
		resp.Body.Close()
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, atoll.FileInfo{}, ctxErr(ctx, err)
	}
	var fi fileInfo
	if err := json.Unmarshal([]byte(resp.Header.Get(FileInfoHeader)), &fi); err != nil {
		resp.Body.Close()
		cancel()
		return nil, atoll.FileInfo{}, atoll.Errorf(q.op, q.id, atoll.ErrInternal, "response header %s: %w", FileInfoHeader, err)
	}
	return &fileReader{body: resp.Body, cancel: cancel, c: f.sb.c, q: q, ctx: readCtx, info: fi.ToFileInfo(), offset: offset, retry: retrier{c: f.sb.c}}, fi.ToFileInfo(), nil
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
		writeJSON(w, http.StatusOK, newFileInfo(fi))
		return nil
	})
}

// Write implements atoll.FS.
func (f files) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (atoll.FileInfo, error) {
	q := call{op: "write", id: f.sb.id, method: "PUT", path: f.sb.path + "/files", query: f.fileQuery(name)}
	if opts.Mode != 0 {
		q.query.Set("mode", formatMode(opts.Mode))
	}
	if opts.NoClobber {
		q.query.Set("no_clobber", "true")
	}
	if opts.Sync {
		q.query.Set("sync", "true")
	}
	var fi fileInfo
	q.reply, q.undoTimeout = &fi, uploadGrace
	err := f.sb.c.callUndoable(ctx, q, r, mediaBytes)
	return fi.ToFileInfo(), err
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
			w.Header().Set(ErrorTrailer, asciiJSON(encodeError(err, RequestID(r.Context()))))
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
	t.w.Header().Set("Content-Type", mediaTar)
	t.w.Header().Set("Trailer", ErrorTrailer)
	t.w.WriteHeader(http.StatusOK)
}

func (t *tarWriter) Write(p []byte) (int, error) {
	t.writeHeader()
	return t.w.Write(p)
}

// WriteTar implements atoll.FS.
func (f files) WriteTar(ctx context.Context, name string, w io.Writer) error {
	q := call{op: "read", id: f.sb.id, path: f.sb.path + "/files/tar", query: f.fileQuery(name)}
	bodyCtx, cancel := f.sb.c.joinContext(ctx)
	defer cancel()
	resp, err := f.sb.c.sendRequest(bodyCtx, q, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body := &bodySource{r: resp.Body}
	if _, err := copyBuffer(w, body); err != nil {
		if body.readFailure() != nil {
			return f.sb.c.wrapConnError(ctx, q.op, q.id, err)
		}
		return err
	}
	if failed := resp.Trailer.Get(ErrorTrailer); failed != "" {
		return decodeError(http.StatusInternalServerError, []byte(failed), q.op, q.id)
	}
	return nil
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

// ReadTar implements atoll.FS.
func (f files) ReadTar(ctx context.Context, name string, r io.Reader) error {
	q := call{op: "write", id: f.sb.id, method: "PUT", path: f.sb.path + "/files/tar", query: f.fileQuery(name), undoTimeout: uploadGrace}
	return f.sb.c.callUndoable(ctx, q, r, mediaTar)
}

var (
	_ atoll.FS    = files{}
	_ atoll.SubFS = files{}
)
