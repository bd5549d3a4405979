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
	recursive := Param{Name: "recursive", Type: "boolean", Doc: "also what is in the directories below"}
	mode := Param{Name: "mode", Type: "string", Doc: "permission bits in octal, like 0644"}
	below := Param{
		Name: "below", Type: "string", Many: true,
		Doc: "a directory that nothing leads out of, neither a name nor a link: what does is `denied`; names are relative to it, and the next one is below it",
	}
	return confinable(below, []Route{
		{
			Method: "GET", Path: base, Name: "readFile", Tag: "files", Summary: "Read a file",
			Doc:    "The header `Atoll-File-Info` describes it, as JSON.",
			Params: []Param{path, {Name: "offset", Type: "integer", Doc: "of the first byte"}}, Reply: Content{Media: mediaBytes}, serve: (*Handler).serveReadFile,
		},
		{
			Method: "PUT", Path: base, Name: "writeFile", Tag: "files", Summary: "Store a file, replacing one that is there as a whole",
			Params: []Param{path, mode, {Name: "no_clobber", Type: "boolean", Doc: "fail when the file is there"}, {Name: "sync", Type: "boolean", Doc: "answer when it is on disk"}},
			Body:   Content{Media: mediaBytes}, Reply: jsonOf[fileInfo](), serve: (*Handler).serveWriteFile,
		},
		{
			Method: "DELETE", Path: base, Name: "removeFile", Tag: "files", Summary: "Delete a file, a link or a directory",
			Params: []Param{path, recursive}, Status: http.StatusNoContent, serve: (*Handler).serveRemoveFile,
		},
		{
			Method: "GET", Path: base + "/stat", Name: "statFile", Tag: "files", Summary: "Describe a file, without following a link",
			Params: []Param{path}, Reply: jsonOf[fileInfo](), serve: (*Handler).serveStatFile,
		},
		{
			Method: "GET", Path: base + "/list", Name: "listFiles", Tag: "files", Summary: "List a directory, sorted by path",
			Params: []Param{path, recursive}, Reply: jsonOf[filesReply](), serve: (*Handler).serveListFiles,
		},
		{
			Method: "POST", Path: base + "/mkdir", Name: "makeDirectory", Tag: "files", Summary: "Make a directory and its missing parents",
			Params: []Param{path, mode}, Status: http.StatusNoContent, serve: (*Handler).serveMkdir,
		},
		{
			Method: "POST", Path: base + "/rename", Name: "renameFile", Tag: "files", Summary: "Move a file or directory",
			Params: []Param{{Name: "from", Type: "string", Required: true}, {Name: "to", Type: "string", Required: true}},
			Status: http.StatusNoContent, serve: (*Handler).serveRename,
		},
		{
			Method: "GET", Path: base + "/tar", Name: "packFiles", Tag: "files", Summary: "Pack a file or directory as a tar stream",
			Doc:    "A stream that could not be completed ends with the trailer `Atoll-Error`.",
			Params: []Param{path}, Reply: Content{Media: mediaTar}, serve: (*Handler).serveWriteTar,
		},
		{
			Method: "PUT", Path: base + "/tar", Name: "unpackFiles", Tag: "files", Summary: "Unpack a tar stream into a directory",
			Params: []Param{path}, Body: Content{Media: mediaTar}, Status: http.StatusNoContent, serve: (*Handler).serveReadTar,
		},
		{
			Method: "GET", Path: base + "/watch", Name: "watchFiles", Tag: "files", Summary: "Follow changes below a directory",
			Doc:    "First one event `synced`, then `created`, `written`, `removed` and `changed`; `error` is the last one.",
			Params: []Param{path, recursive}, Reply: eventsOf[fileEvent](), serve: (*Handler).serveFileWatch,
		},
	})
}

// confinable adds the parameter to all routes.
func confinable(below Param, routes []Route) []Route {
	for i := range routes {
		routes[i].Params = append(routes[i].Params, below)
	}
	return routes
}

// A fileInfo is a FileInfo on the wire. JSON is text and names need not be:
// one that is not comes in base64 as well.
type fileInfo struct {
	atoll.FileInfo
	NameB64   []byte `json:"name_b64,omitempty"`
	PathB64   []byte `json:"path_b64,omitempty"`
	TargetB64 []byte `json:"target_b64,omitempty"`
}

func fileInfoOf(fi atoll.FileInfo) fileInfo {
	return fileInfo{fi, unlessText(fi.Name), unlessText(fi.Path), unlessText(fi.Target)}
}

func unlessText(s string) []byte {
	if utf8.ValidString(s) {
		return nil
	}
	return []byte(s)
}

func (w fileInfo) info() atoll.FileInfo {
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

// A fileEvent is a FileEvent on the wire.
type fileEvent struct {
	atoll.FileEvent
	PathB64 []byte `json:"path_b64,omitempty"`
}

func fileEventOf(ev atoll.FileEvent) fileEvent { return fileEvent{ev, unlessText(ev.Path)} }

func (w fileEvent) event() atoll.FileEvent {
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
	below []string // what it is confined to, each below the one before
}

// Files implements atoll.Filer.
func (s *sandbox) Files() atoll.FS { return files{sb: s} }

// Sub implements atoll.SubFS. A server that knows nothing of it refuses the
// parameter.
func (f files) Sub(dir string) atoll.FS {
	return files{f.sb, append(slices.Clip(f.below), dir)}
}

// query is that of a request about the file called name.
func (f files) query(name string) url.Values { return f.confined(url.Values{"path": {name}}) }

// confined adds to a query what f is confined to.
func (f files) confined(q url.Values) url.Values {
	if len(f.below) > 0 {
		q["below"] = f.below
	}
	return q
}

// call makes a request below the sandbox's files.
func (f files) call(ctx context.Context, q call) error {
	q.path = "/files" + q.path
	return f.sb.call(ctx, q)
}

// maxBelow is how many directories, each below the one before, a request may be
// confined to: each of them is opened for it.
const maxBelow = 16

// filesOf is the FS that a request is about.
func (h *Handler) filesOf(r *http.Request) (atoll.FS, error) {
	below := r.URL.Query()["below"]
	if len(below) > maxBelow {
		return nil, invalid("parameter below: is given %d times, more than %d", len(below), maxBelow)
	}
	sb, err := h.sandbox(r)
	if err != nil {
		return nil, err
	}
	fs := atoll.Files(sb)
	for _, dir := range below {
		fs = atoll.SubFiles(fs, dir)
	}
	return fs, nil
}

// onFile answers a request for one file, whose remaining parameters read
// takes.
func (h *Handler) onFile(r *http.Request, read func(q *query), do func(fs atoll.FS, name string) error) error {
	q := queryOf(r)
	name := q.str("path")
	if read != nil {
		read(q)
	}
	if q.err != nil {
		return q.err
	}
	fs, err := h.filesOf(r)
	if err != nil {
		return err
	}
	return do(fs, name)
}

func (h *Handler) serveStatFile(w http.ResponseWriter, r *http.Request) error {
	return h.onFile(r, nil, func(fs atoll.FS, name string) error {
		fi, err := fs.Stat(r.Context(), name)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, fileInfoOf(fi))
		return nil
	})
}

// Stat implements atoll.FS.
func (f files) Stat(ctx context.Context, name string) (atoll.FileInfo, error) {
	var fi fileInfo
	err := f.call(ctx, call{op: "stat", path: "/stat", query: f.query(name), reply: &fi})
	return fi.info(), err
}

func (h *Handler) serveListFiles(w http.ResponseWriter, r *http.Request) error {
	var recursive bool
	return h.onFile(r, func(q *query) { recursive = q.bool("recursive") }, func(fs atoll.FS, name string) error {
		all, err := fs.List(r.Context(), name, recursive)
		if err != nil {
			return err
		}
		reply := filesReply{make([]fileInfo, len(all))}
		for i, fi := range all {
			reply.Files[i] = fileInfoOf(fi)
		}
		writeJSON(w, http.StatusOK, reply)
		return nil
	})
}

// List implements atoll.FS.
func (f files) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	q := f.query(name)
	if recursive {
		q.Set("recursive", "true")
	}
	var reply filesReply
	if err := f.call(ctx, call{op: "list", path: "/list", query: q, reply: &reply, most: maxListReply}); err != nil {
		return nil, err
	}
	all := make([]atoll.FileInfo, len(reply.Files))
	for i, fi := range reply.Files {
		all[i] = fi.info()
	}
	return all, nil
}

func (h *Handler) serveMkdir(w http.ResponseWriter, r *http.Request) error {
	var mode uint32
	return h.onFile(r, func(q *query) { mode = q.mode("mode") }, func(fs atoll.FS, name string) error {
		if err := fs.Mkdir(r.Context(), name, mode); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}

// Mkdir implements atoll.FS.
func (f files) Mkdir(ctx context.Context, name string, mode uint32) error {
	q := f.query(name)
	if mode != 0 {
		q.Set("mode", octal(mode))
	}
	return f.call(ctx, call{op: "mkdir", method: "POST", path: "/mkdir", query: q})
}

func octal(mode uint32) string { return fmt.Sprintf("%04o", mode) }

func (h *Handler) serveRename(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	from, to := q.str("from"), q.str("to")
	fs, err := h.filesOf(r)
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
	return f.call(ctx, call{op: "rename", method: "POST", path: "/rename", query: f.confined(url.Values{"from": {from}, "to": {to}})})
}

func (h *Handler) serveRemoveFile(w http.ResponseWriter, r *http.Request) error {
	var recursive bool
	return h.onFile(r, func(q *query) { recursive = q.bool("recursive") }, func(fs atoll.FS, name string) error {
		if err := fs.Remove(r.Context(), name, recursive); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}

// Remove implements atoll.FS.
func (f files) Remove(ctx context.Context, name string, recursive bool) error {
	q := f.query(name)
	if recursive {
		q.Set("recursive", "true")
	}
	return f.call(ctx, call{op: "remove", method: "DELETE", query: q})
}

// serveReadFile sends the file as it was when it was opened: its length is
// told first, so that the kernel may copy it, and a file that breaks off is
// noticed.
func (h *Handler) serveReadFile(w http.ResponseWriter, r *http.Request) error {
	var offset int64
	return h.onFile(r, func(q *query) { offset = q.int("offset", 0) }, func(fs atoll.FS, name string) error {
		file, fi, err := fs.Read(r.Context(), name, offset)
		if err != nil {
			return err
		}
		defer file.Close()
		header := w.Header()
		header.Set("Content-Type", mediaBytes)
		header.Set(FileInfoHeader, asciiJSON(fileInfoOf(fi)))
		var src io.Reader = file
		if fi.Type == atoll.TypeFile && fi.Size > 0 { // the kernel's own files say 0
			left := max(fi.Size-offset, 0)
			header.Set("Content-Length", strconv.FormatInt(left, 10))
			src = io.LimitReader(file, left)
		}
		if _, err := copyBody(w, src); err != nil {
			return h.abort(r, err)
		}
		return nil
	})
}

// Read implements atoll.FS. ctx bounds the opening.
func (f files) Read(ctx context.Context, name string, offset int64) (io.ReadCloser, atoll.FileInfo, error) {
	q := call{op: "read", id: f.sb.id, path: f.sb.path + "/files", query: f.query(name)}
	if offset != 0 {
		q.query.Set("offset", strconv.FormatInt(offset, 10))
	}
	if err := ctx.Err(); err != nil {
		return nil, atoll.FileInfo{}, err
	}
	life, cancel := f.sb.c.within(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	resp, err := f.sb.c.sendAgain(life, q)
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
		return nil, atoll.FileInfo{}, atoll.Errorf(q.op, q.id, atoll.ErrInternal, "the answer does not describe the file: %w", err)
	}
	return &fileReader{body: resp.Body, cancel: cancel, c: f.sb.c, q: q, life: life, info: fi.info(), offset: offset, trial: trial{c: f.sb.c}}, fi.info(), nil
}

func (h *Handler) serveWriteFile(w http.ResponseWriter, r *http.Request) error {
	var opts atoll.WriteOptions
	read := func(q *query) {
		opts = atoll.WriteOptions{Mode: q.mode("mode"), NoClobber: q.bool("no_clobber"), Sync: q.bool("sync")}
	}
	return h.onFile(r, read, func(fs atoll.FS, name string) error {
		fi, err := fs.Write(r.Context(), name, h.upload(w, r), opts)
		if err != nil {
			return tooLarge(err)
		}
		writeJSON(w, http.StatusOK, fileInfoOf(fi))
		return nil
	})
}

// Write implements atoll.FS.
func (f files) Write(ctx context.Context, name string, r io.Reader, opts atoll.WriteOptions) (atoll.FileInfo, error) {
	q := call{op: "write", id: f.sb.id, method: "PUT", path: f.sb.path + "/files", query: f.query(name)}
	if opts.Mode != 0 {
		q.query.Set("mode", octal(opts.Mode))
	}
	if opts.NoClobber {
		q.query.Set("no_clobber", "true")
	}
	if opts.Sync {
		q.query.Set("sync", "true")
	}
	var fi fileInfo
	q.reply, q.undo = &fi, uploadGrace
	err := f.sb.c.exchange(ctx, q, r, mediaBytes)
	return fi.info(), err
}

func (h *Handler) serveWriteTar(w http.ResponseWriter, r *http.Request) error {
	return h.onFile(r, nil, func(fs atoll.FS, name string) error {
		out := &tarWriter{w: w}
		err := fs.WriteTar(r.Context(), name, out)
		if err != nil && !out.begun {
			return err
		}
		out.begin()
		if err != nil {
			w.Header().Set(ErrorTrailer, asciiJSON(encodeError(err, RequestID(r.Context()))))
		}
		return answered(err)
	})
}

// A tarWriter begins the answer with the first bytes.
type tarWriter struct {
	w     http.ResponseWriter
	begun bool
}

func (t *tarWriter) begin() {
	if t.begun {
		return
	}
	t.begun = true
	t.w.Header().Set("Content-Type", mediaTar)
	t.w.Header().Set("Trailer", ErrorTrailer)
	t.w.WriteHeader(http.StatusOK)
}

func (t *tarWriter) Write(p []byte) (int, error) {
	t.begin()
	return t.w.Write(p)
}

// WriteTar implements atoll.FS.
func (f files) WriteTar(ctx context.Context, name string, w io.Writer) error {
	q := call{op: "read", id: f.sb.id, path: f.sb.path + "/files/tar", query: f.query(name)}
	life, cancel := f.sb.c.within(ctx)
	defer cancel()
	resp, err := f.sb.c.send(life, q, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body := &source{r: resp.Body}
	if _, err := copyBuffer(w, body); err != nil {
		if body.failure() != nil {
			return f.sb.c.fault(ctx, q.op, q.id, err)
		}
		return err
	}
	if failed := resp.Trailer.Get(ErrorTrailer); failed != "" {
		return decodeError(http.StatusInternalServerError, []byte(failed), q.op, q.id)
	}
	return nil
}

func (h *Handler) serveReadTar(w http.ResponseWriter, r *http.Request) error {
	return h.onFile(r, nil, func(fs atoll.FS, name string) error {
		if err := fs.ReadTar(r.Context(), name, h.upload(w, r)); err != nil {
			return tooLarge(err)
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}

// ReadTar implements atoll.FS.
func (f files) ReadTar(ctx context.Context, name string, r io.Reader) error {
	q := call{op: "write", id: f.sb.id, method: "PUT", path: f.sb.path + "/files/tar", query: f.query(name), undo: uploadGrace}
	return f.sb.c.exchange(ctx, q, r, mediaTar)
}

var (
	_ atoll.FS    = files{}
	_ atoll.SubFS = files{}
)
