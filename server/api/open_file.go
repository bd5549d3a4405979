package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// editRoutes returns the routes of an atoll.Editor. path and mode are parameters of files.
func editRoutes(base string, path, mode Param) []Route {
	flag := func(name, doc string) Param { return Param{Name: name, Type: "boolean", Doc: doc} }
	return []Route{
		{
			Method: "GET", Path: base + "/open", Name: "openFile", Tag: "files", Summary: "Open a file to read and change it in place, over a WebSocket",
			Doc: "All messages are binary: a line of JSON, and then data. The first message of the server says that the file is open. " +
				"The server answers requests in their order. If a client sends more than two without waiting, the server may not answer its pings meanwhile.",
			Params: []Param{
				path, mode, flag("read", "open for reading"), flag("write", "open for writing"), flag("append", "each write goes to the end of the file"),
				flag("create", "create a missing file"), flag("exclusive", "fail if the file exists"), flag("truncate", "remove the content"),
			},
			Status: http.StatusSwitchingProtocols, Stream: jsonOf[wire.FileReply](), serve: (*Handler).serveOpenFile,
		},
		{
			Method: "POST", Path: base + "/change", Name: "changeFile", Tag: "files", Summary: "Change the size, mode, times or owner of a file",
			Params: []Param{path}, Body: jsonOf[atoll.FileChange](), Status: http.StatusNoContent, serve: (*Handler).serveChangeFile,
		},
		{
			Method: "POST", Path: base + "/link", Name: "linkFile", Tag: "files", Summary: "Give a file a further name",
			Params: []Param{{Name: "from", Type: "string", Required: true}, {Name: "to", Type: "string", Required: true}},
			Status: http.StatusNoContent, serve: (*Handler).serveLinkFile,
		},
		{
			Method: "GET", Path: base + "/space", Name: "getFileSpace", Tag: "files", Summary: "Get the space of a file system",
			Params: []Param{path}, Reply: jsonOf[atoll.Space](), serve: (*Handler).serveSpace,
		},
	}
}

func (h *Handler) serveChangeFile(w http.ResponseWriter, r *http.Request) error {
	var change atoll.FileChange
	if err := h.decodeBody(w, r, &change, true); err != nil {
		return err
	}
	if err := h.checkFileSize(change.Size); err != nil {
		return err
	}
	return h.withFile(r, nil, func(fs atoll.FS, name string) error {
		if err := atoll.ChangeFile(r.Context(), fs, name, change); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}

func (h *Handler) serveLinkFile(w http.ResponseWriter, r *http.Request) error {
	q := parseQuery(r)
	from, to := q.getString("from"), q.getString("to")
	fs, err := h.requestFiles(r)
	if err != nil {
		return err
	}
	if err := atoll.LinkFile(r.Context(), fs, from, to); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h *Handler) serveSpace(w http.ResponseWriter, r *http.Request) error {
	return h.withFile(r, nil, func(fs atoll.FS, name string) error {
		space, err := atoll.SpaceOf(r.Context(), fs, name)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, space)
		return nil
	})
}

func (h *Handler) serveOpenFile(w http.ResponseWriter, r *http.Request) error {
	var opts atoll.OpenOptions
	read := func(q *queryParams) {
		opts = atoll.OpenOptions{
			Read: q.getBool("read"), Write: q.getBool("write"), Append: q.getBool("append"), Create: q.getBool("create"),
			Exclusive: q.getBool("exclusive"), Truncate: q.getBool("truncate"), Mode: q.getMode("mode"),
		}
	}
	return h.withFile(r, read, func(fs atoll.FS, name string) error {
		ctx, ws, done, err := h.webSocket(w, r)
		if err != nil {
			return err
		}
		defer done()
		s := &fileStream{h: h, ctx: ctx, ws: ws, requestID: wire.RequestID(ctx), fs: fs, name: name, opts: opts}
		defer s.startReading()()
		defer context.AfterFunc(ctx, func() { _ = ws.CloseNow() })()
		defer wire.KeepAlive(ctx, ws, pingEvery, pingTimeout)()
		return alreadyAnswered(s.serveFile())
	})
}

// A fileStream is the server's side of an open file.
type fileStream struct {
	h         *Handler
	ctx       context.Context
	ws        *websocket.Conn
	requestID string
	fs        atoll.FS
	name      string
	opts      atoll.OpenOptions
	messages  chan fileMessage
	buf       []byte // of the data that was read
}

// A fileMessage is a message of the client, or the error of the connection.
type fileMessage struct {
	typ  websocket.MessageType
	data []byte
	err  error
}

// startReading reads messages ahead of the requests in progress: the library answers pings, and sees the answers to those
// of the server, only while it reads. The caller must call stop, which closes the connection.
func (s *fileStream) startReading() (stop func()) {
	s.messages = make(chan fileMessage, wire.MaxFileRequests-1)
	s.ws.SetReadLimit(wire.MaxFileMessage)
	stopped := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			var m fileMessage
			m.typ, m.data, m.err = s.ws.Read(s.ctx)
			select {
			case s.messages <- m:
			case <-stopped:
				return
			}
			if m.err != nil {
				return
			}
		}
	})
	return func() {
		close(stopped)
		_ = s.ws.CloseNow()
		work.Wait()
	}
}

// serveFile opens the file, and serves it until the client closes it or has gone.
func (s *fileStream) serveFile() error {
	file, err := atoll.OpenFile(s.ctx, s.fs, s.name, s.opts)
	if err != nil {
		s.finishFile(err)
		return err
	}
	defer file.Close()
	if err := s.sendReply(wire.FileReply{}, nil, nil); err != nil {
		return err
	}
	for {
		m := <-s.messages
		if m.err != nil {
			if code := websocket.CloseStatus(m.err); code == websocket.StatusNormalClosure || code == websocket.StatusGoingAway {
				return nil
			}
			return wire.ErrClientLost
		}
		var q wire.FileRequest
		data, err := wire.DecodeFileMessage(m.data, &q)
		if err != nil || m.typ != websocket.MessageBinary {
			_ = s.ws.Close(websocket.StatusPolicyViolation, "send binary messages with a line of JSON")
			return wire.ProtocolErrorf("a malformed message")
		}
		if q.Op == wire.FileOpClose {
			s.finishFile(file.Close())
			return nil
		}
		reply, data, err := s.performRequest(file, q, data)
		if err := s.sendReply(reply, data, err); err != nil {
			return err
		}
	}
}

// finishFile sends the last message, and ends the WebSocket.
func (s *fileStream) finishFile(err error) {
	if s.sendReply(wire.FileReply{}, nil, err) == nil { // else the client has gone
		_ = s.ws.Close(websocket.StatusNormalClosure, "")
	}
}

func (s *fileStream) sendReply(reply wire.FileReply, data []byte, err error) error {
	if err != nil {
		w := wire.EncodeError(err, s.requestID)
		reply.Error = &w
	}
	message, err := wire.EncodeFileMessage(reply, data)
	if err != nil {
		return err
	}
	return s.ws.Write(s.ctx, websocket.MessageBinary, message)
}

// checkFileSize refuses a size beyond Options.MaxUpload.
func (h *Handler) checkFileSize(size *int64) error {
	if size != nil && h.opts.MaxUpload > 0 && *size > h.opts.MaxUpload {
		return invalidError("the file would be larger than %d bytes", h.opts.MaxUpload)
	}
	return nil
}

// checkWrite refuses a write of n bytes beyond Options.MaxUpload.
func (s *fileStream) checkWrite(file atoll.File, offset int64, n int) error {
	if s.h.opts.MaxUpload == 0 {
		return nil
	}
	if s.opts.Append {
		info, err := file.Stat(s.ctx)
		if err != nil {
			return err
		}
		offset = info.Size
	}
	end := offset + int64(n) // negative after an overflow
	if end < offset {
		return invalidError("offset %d: too large", offset)
	}
	return s.h.checkFileSize(&end)
}

// performRequest performs one request.
func (s *fileStream) performRequest(file atoll.File, q wire.FileRequest, data []byte) (reply wire.FileReply, result []byte, err error) {
	switch q.Op {
	case wire.FileOpRead:
		if q.Length < 0 || q.Length > wire.MaxFileData {
			return reply, nil, invalidError("length: must be within 0..%d", wire.MaxFileData)
		}
		if len(s.buf) < q.Length {
			s.buf = make([]byte, q.Length)
		}
		n, err := file.ReadAt(s.ctx, s.buf[:q.Length], q.Offset)
		if errors.Is(err, io.EOF) {
			reply.End, err = true, nil
		}
		return reply, s.buf[:n], err
	case wire.FileOpWrite:
		if err := s.checkWrite(file, q.Offset, len(data)); err != nil {
			return reply, nil, err
		}
		reply.Count, err = file.WriteAt(s.ctx, data, q.Offset)
	case wire.FileOpStat:
		info, err := file.Stat(s.ctx)
		if err == nil {
			w := wire.NewFileInfo(info)
			reply.Info = &w
		}
		return reply, nil, err
	case wire.FileOpChange:
		if q.Change == nil {
			return reply, nil, invalidError("change: missing")
		}
		if err := s.h.checkFileSize(q.Change.Size); err != nil {
			return reply, nil, err
		}
		err = file.Change(s.ctx, *q.Change)
	case wire.FileOpSync:
		err = file.Sync(s.ctx)
	default:
		err = invalidError("op %q: unknown", q.Op)
	}
	return reply, nil, err
}
