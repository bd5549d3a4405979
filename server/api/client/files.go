package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

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

// Stat implements atoll.FS.
func (f files) Stat(ctx context.Context, name string) (atoll.FileInfo, error) {
	var fi wire.FileInfo
	err := f.callFiles(ctx, call{op: "stat", path: "/stat", query: f.fileQuery(name), reply: &fi})
	return fi.ToFileInfo(), err
}

// List implements atoll.FS.
func (f files) List(ctx context.Context, name string, recursive bool) ([]atoll.FileInfo, error) {
	q := f.fileQuery(name)
	if recursive {
		q.Set("recursive", "true")
	}
	var reply wire.FilesReply
	if err := f.callFiles(ctx, call{op: "list", path: "/list", query: q, reply: &reply, replyLimit: maxListReply}); err != nil {
		return nil, err
	}
	all := make([]atoll.FileInfo, len(reply.Files))
	for i, fi := range reply.Files {
		all[i] = fi.ToFileInfo()
	}
	return all, nil
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

// Rename implements atoll.FS.
func (f files) Rename(ctx context.Context, from, to string) error {
	return f.callFiles(ctx, call{op: "rename", method: "POST", path: "/rename", query: f.addBelow(url.Values{"from": {from}, "to": {to}})})
}

// Remove implements atoll.FS.
func (f files) Remove(ctx context.Context, name string, recursive bool) error {
	q := f.fileQuery(name)
	if recursive {
		q.Set("recursive", "true")
	}
	return f.callFiles(ctx, call{op: "remove", method: "DELETE", query: q})
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
	var fi wire.FileInfo
	if err := json.Unmarshal([]byte(resp.Header.Get(wire.FileInfoHeader)), &fi); err != nil {
		resp.Body.Close()
		cancel()
		return nil, atoll.FileInfo{}, atoll.Errorf(q.op, q.id, atoll.ErrInternal, "response header %s: %w", wire.FileInfoHeader, err)
	}
	return &fileReader{body: resp.Body, cancel: cancel, c: f.sb.c, q: q, ctx: readCtx, info: fi.ToFileInfo(), offset: offset, retry: retrier{c: f.sb.c}}, fi.ToFileInfo(), nil
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
	var fi wire.FileInfo
	q.reply, q.undoTimeout = &fi, undoGrace
	err := f.sb.c.callUndoable(ctx, q, r, wire.MediaBytes)
	return fi.ToFileInfo(), err
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
	if _, err := wire.CopyBuffer(w, body); err != nil {
		if body.readFailure() != nil {
			return f.sb.c.wrapConnError(ctx, q.op, q.id, err)
		}
		return err
	}
	if failed := resp.Trailer.Get(wire.ErrorTrailer); failed != "" {
		return wire.DecodeError(http.StatusInternalServerError, []byte(failed), q.op, q.id)
	}
	return nil
}

// ReadTar implements atoll.FS.
func (f files) ReadTar(ctx context.Context, name string, r io.Reader) error {
	q := call{op: "write", id: f.sb.id, method: "PUT", path: f.sb.path + "/files/tar", query: f.fileQuery(name), undoTimeout: undoGrace}
	return f.sb.c.callUndoable(ctx, q, r, wire.MediaTar)
}

var (
	_ atoll.FS    = files{}
	_ atoll.SubFS = files{}
)
