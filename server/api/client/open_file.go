package client

import (
	"context"
	"io"
	"net/url"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// Open implements atoll.Editor. The file has a connection of its own.
func (f files) Open(ctx context.Context, name string, opts atoll.OpenOptions) (atoll.File, error) {
	q := call{op: "open", id: f.sb.id, path: f.sb.path + "/files/open", query: f.fileQuery(name)}
	for param, set := range map[string]bool{
		"read": opts.Read, "write": opts.Write, "append": opts.Append, "create": opts.Create, "exclusive": opts.Exclusive, "truncate": opts.Truncate,
	} {
		if set {
			q.query.Set(param, "true")
		}
	}
	if opts.Mode != 0 {
		q.query.Set("mode", formatMode(opts.Mode))
	}
	c := f.sb.c
	if err := c.beginWork(); err != nil {
		return nil, atoll.E(q.op, q.id, atoll.ErrUnavailable, err)
	}
	ws, _, err := c.webSocket(ctx, q, nil)
	if err != nil {
		c.work.Done()
		return nil, err
	}
	ws.SetReadLimit(wire.MaxFileMessage)
	file := &openFile{
		c: c, ws: ws, id: q.id, name: name,
		sending: make(chan struct{}, 1), waiting: make(chan chan fileReply, wire.MaxFileRequests), ended: make(chan struct{}),
	}
	opened := make(chan fileReply, 1)
	file.waiting <- opened
	go file.readReplies()
	if _, _, err := file.awaitReply(ctx, q.op, opened); err != nil {
		_ = ws.CloseNow()
		<-file.ended
		return nil, err
	}
	return file, nil
}

// Change implements atoll.Editor.
func (f files) Change(ctx context.Context, name string, change atoll.FileChange) error {
	return f.callFiles(ctx, call{op: "change", method: "POST", path: "/change", query: f.fileQuery(name), body: change, idempotent: true})
}

// Link implements atoll.Editor.
func (f files) Link(ctx context.Context, from, to string) error {
	return f.callFiles(ctx, call{op: "link", method: "POST", path: "/link", query: f.addBelow(url.Values{"from": {from}, "to": {to}})})
}

// Space implements atoll.Editor.
func (f files) Space(ctx context.Context, name string) (space atoll.Space, err error) {
	err = f.callFiles(ctx, call{op: "space", path: "/space", query: f.fileQuery(name), reply: &space})
	return space, err
}

// An openFile is the client's side of an open file. The server answers in the order of the
// requests.
type openFile struct {
	c        *Client
	ws       *websocket.Conn
	id, name string

	sending chan struct{}       // has one element while a request is sent, so that waiting has the order of the requests
	waiting chan chan fileReply // for the next replies; its capacity limits the requests on their way
	ended   chan struct{}       // closed when no more replies come
	lost    error               // why; set before ended is closed

	mu     sync.Mutex
	closed bool
}

// A fileReply is one reply.
type fileReply struct {
	wire.FileReply
	data []byte
}

// readReplies passes replies on until the connection ends.
func (f *openFile) readReplies() {
	defer f.c.work.Done()
	defer close(f.ended)
	defer context.AfterFunc(f.c.ctx, func() { _ = f.ws.CloseNow() })()
	defer f.ws.CloseNow()
	if f.c.opts.Patience > 0 {
		defer wire.KeepAlive(f.c.ctx, f.ws, pingEvery, pingTimeout)()
	}
	for {
		_, message, err := f.ws.Read(context.Background())
		var reply fileReply
		if err == nil {
			reply.data, err = wire.DecodeFileMessage(message, &reply.FileReply)
		}
		if err != nil {
			f.lost = err
			return
		}
		select {
		case to := <-f.waiting:
			to <- reply
		default: // to no request
		}
	}
}

// lostError returns the error of a request after the connection has ended.
func (f *openFile) lostError(ctx context.Context, op string) error {
	return f.c.wrapConnError(ctx, op, f.name, f.lost)
}

// awaitReply returns the reply to a request, and its error.
func (f *openFile) awaitReply(ctx context.Context, op string, from chan fileReply) (wire.FileReply, []byte, error) {
	var reply fileReply
	select {
	case reply = <-from:
	case <-ctx.Done():
		return wire.FileReply{}, nil, ctx.Err()
	case <-f.ended:
		select {
		case reply = <-from: // the last one
		default:
			return wire.FileReply{}, nil, f.lostError(ctx, op)
		}
	}
	if reply.Error != nil {
		return reply.FileReply, reply.data, reply.Error.ToError(op, f.name)
	}
	return reply.FileReply, reply.data, nil
}

// callFile sends a request and returns its reply. When ctx ends, callFile returns, and the server still performs a request
// that is on its way.
func (f *openFile) callFile(ctx context.Context, q wire.FileRequest, data []byte) (wire.FileReply, []byte, error) {
	if err := ctx.Err(); err != nil {
		return wire.FileReply{}, nil, err
	}
	message, err := wire.EncodeFileMessage(q, data)
	if err != nil {
		return wire.FileReply{}, nil, atoll.E(q.Op, f.name, atoll.ErrInvalid, err)
	}
	select {
	case f.sending <- struct{}{}:
	case <-ctx.Done():
		return wire.FileReply{}, nil, ctx.Err()
	case <-f.ended:
		return wire.FileReply{}, nil, f.lostError(ctx, q.Op)
	}
	reply := make(chan fileReply, 1)
	select {
	case f.waiting <- reply:
	case <-ctx.Done():
		err = ctx.Err()
	case <-f.ended:
		err = f.lostError(ctx, q.Op)
	}
	if err != nil {
		<-f.sending
		return wire.FileReply{}, nil, err
	}
	go func() { // the end of ctx must not end a message in the middle, and the call must not wait for a server that reads nothing
		_ = f.ws.Write(context.Background(), websocket.MessageBinary, message) // if it fails, so does the reader
		<-f.sending
	}()
	return f.awaitReply(ctx, q.Op, reply)
}

// ReadAt implements atoll.File.
func (f *openFile) ReadAt(ctx context.Context, p []byte, offset int64) (n int, err error) {
	for {
		part := p[n:min(len(p), n+wire.MaxFileData)]
		reply, data, err := f.callFile(ctx, wire.FileRequest{Op: wire.FileOpRead, Offset: offset + int64(n), Length: len(part)}, nil)
		got := copy(part, data)
		n += got
		switch {
		case err != nil:
			return n, err
		case reply.End:
			return n, io.EOF
		case got < len(part):
			return n, atoll.Errorf(wire.FileOpRead, f.name, atoll.ErrInternal, "the server sent %d bytes of %d", got, len(part))
		case n == len(p):
			return n, nil
		}
	}
}

// WriteAt implements atoll.File.
func (f *openFile) WriteAt(ctx context.Context, p []byte, offset int64) (n int, err error) {
	for {
		part := p[n:min(len(p), n+wire.MaxFileData)]
		reply, _, err := f.callFile(ctx, wire.FileRequest{Op: wire.FileOpWrite, Offset: offset + int64(n)}, part)
		n += max(0, min(reply.Count, len(part)))
		switch {
		case err != nil:
			return n, err
		case reply.Count < len(part):
			return n, atoll.Errorf(wire.FileOpWrite, f.name, atoll.ErrInternal, "the server wrote %d bytes of %d", reply.Count, len(part))
		case n == len(p):
			return n, nil
		}
	}
}

// Stat implements atoll.File.
func (f *openFile) Stat(ctx context.Context) (atoll.FileInfo, error) {
	reply, _, err := f.callFile(ctx, wire.FileRequest{Op: wire.FileOpStat}, nil)
	if err != nil {
		return atoll.FileInfo{}, err
	}
	if reply.Info == nil {
		return atoll.FileInfo{}, atoll.Errorf(wire.FileOpStat, f.name, atoll.ErrInternal, "the server sent no description")
	}
	return reply.Info.ToFileInfo(), nil
}

// Change implements atoll.File.
func (f *openFile) Change(ctx context.Context, change atoll.FileChange) error {
	_, _, err := f.callFile(ctx, wire.FileRequest{Op: wire.FileOpChange, Change: &change}, nil)
	return err
}

// Sync implements atoll.File.
func (f *openFile) Sync(ctx context.Context) error {
	_, _, err := f.callFile(ctx, wire.FileRequest{Op: wire.FileOpSync}, nil)
	return err
}

// closeTimeout is the time for a server to close a file.
const closeTimeout = 30 * time.Second

// Close implements atoll.File.
func (f *openFile) Close() error {
	f.mu.Lock()
	closed := f.closed
	f.closed = true
	f.mu.Unlock()
	if closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_, _, err := f.callFile(ctx, wire.FileRequest{Op: wire.FileOpClose}, nil)
	_ = f.ws.CloseNow()
	<-f.ended
	f.sending <- struct{}{} // waits for the goroutine that sends; nothing is sent after this
	return err
}

var _ atoll.Editor = files{}
