package sshd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
)

// serveSFTP is the program that serves the sandbox's files.
func (s *session) serveSFTP(ctx context.Context) (atoll.Exit, error) {
	sb, err := s.conn.findSandbox(ctx)
	if err != nil {
		return atoll.Exit{}, err
	}
	s.conn.log.InfoContext(ctx, "ssh: session", "what", "sftp", "sandbox", sb.ID())
	f := &fileServer{ctx: ctx, fs: atoll.Files(sb), maxUpload: s.conn.server.opts.MaxUpload, work: &s.work, handles: map[string]handle{}}
	work, err := f.fs.Stat(ctx, ".")
	if err != nil {
		return atoll.Exit{}, err
	}
	f.home = work.Path
	defer context.AfterFunc(ctx, func() { _ = s.ch.Close() })()
	return atoll.Exit{}, f.serveClient(s.ch)
}

// A fileServer serves version 3 of the SFTP protocol as OpenSSH's sftp-server does: it
// performs requests in their order, on open files and not on their names. It merges
// neighbouring reads and writes that wait, because each call may go to another machine.
type fileServer struct {
	ctx       context.Context
	fs        atoll.FS
	home      string // base of relative names
	maxUpload int64  // largest file; 0 means no limit
	work      *sync.WaitGroup

	handles    map[string]handle
	lastHandle int

	queue   *requestQueue
	replies bytes.Buffer // not sent yet
}

// serveClient serves requests until the client closes its side, or sends nonsense. A
// goroutine of f.work may read from the client until the caller ends that.
func (f *fileServer) serveClient(client io.ReadWriter) error {
	f.queue = newRequestQueue()
	defer f.queue.stopReading()
	defer f.closeHandles()
	f.work.Go(func() { f.queue.readRequests(client) })
	for {
		q, err := f.queue.takeFirst()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = f.handleRequest(q)
		}
		if err == nil {
			_, err = f.replies.WriteTo(client)
		}
		if err != nil {
			return err
		}
	}
}

// handleRequest performs a request. Its error ends the session.
func (f *fileServer) handleRequest(q request) error {
	switch q.kind {
	case fxpInit:
		f.addReply(fxpVersion, ssh.Marshal(struct {
			Version    uint32
			Extensions []byte `ssh:"rest"`
		}{3, extensionPairs()}))
		return nil
	case fxpRead:
		return f.handleReads(q)
	case fxpWrite:
		return f.handleWrites(q)
	}
	perform := performers[q.kind]
	if q.kind == fxpExtended {
		name, rest, err := cutString(q.body)
		if err != nil {
			return err
		}
		perform, q.body = extensions[name], rest
	}
	if perform == nil {
		f.addStatus(q.id, errOperation)
		return nil
	}
	kind, body, err := perform(f, q.body)
	switch {
	case errors.Is(err, errPayload):
		return err
	case err != nil:
		f.addStatus(q.id, err)
	case kind == 0:
		f.addStatus(q.id, nil)
	default:
		f.addReply(kind, append(binary.BigEndian.AppendUint32(nil, q.id), body...))
	}
	return nil
}

// A performer performs a request, and returns the type and the content of the reply.
// Without a type, it is the status OK.
type performer func(f *fileServer, body []byte) (kind byte, reply []byte, err error)

// performers are the requests besides reads, writes and extensions.
var performers = map[byte]performer{
	fxpOpen: (*fileServer).openFile, fxpClose: (*fileServer).closeHandle, fxpFstat: (*fileServer).statHandle,
	fxpFsetstat: (*fileServer).changeHandle, fxpOpendir: (*fileServer).openDir, fxpReaddir: (*fileServer).readDir,
	fxpLstat: (*fileServer).statLink, fxpStat: (*fileServer).statName, fxpSetstat: (*fileServer).changeName,
	fxpRemove: (*fileServer).removeFile, fxpMkdir: (*fileServer).makeDir, fxpRmdir: (*fileServer).removeDir,
	fxpRealpath: (*fileServer).resolveName, fxpRename: (*fileServer).renameFile, fxpReadlink: (*fileServer).readLink,
	fxpSymlink: (*fileServer).makeSymlink,
}

// extensions are the extended requests.
var extensions = map[string]performer{
	"posix-rename@openssh.com": (*fileServer).replaceFile, "statvfs@openssh.com": (*fileServer).spaceOfName,
	"fstatvfs@openssh.com": (*fileServer).spaceOfHandle, "hardlink@openssh.com": (*fileServer).makeLink,
	"fsync@openssh.com": (*fileServer).syncHandle, "lsetstat@openssh.com": (*fileServer).changeLink,
	"limits@openssh.com": (*fileServer).describeLimits, "copy-data": (*fileServer).copyData,
}

// extensionPairs returns the names and versions of the extensions.
func extensionPairs() (pairs []byte) {
	for name := range extensions {
		version := "1"
		if name == "statvfs@openssh.com" || name == "fstatvfs@openssh.com" {
			version = "2"
		}
		pairs = append(pairs, ssh.Marshal(struct{ Name, Version string }{name, version})...)
	}
	return pairs
}

// addReply queues a reply.
func (f *fileServer) addReply(kind byte, content []byte) {
	head := binary.BigEndian.AppendUint32(nil, uint32(1+len(content)))
	f.replies.Write(append(head, kind))
	f.replies.Write(content)
}

func (f *fileServer) addStatus(id uint32, err error) {
	code, text := statusOf(err)
	f.addReply(fxpStatus, ssh.Marshal(struct {
		ID, Code       uint32
		Text, Language string
	}{id, code, text, ""}))
}

// Bounds of a session. The limits of packets are those of sftp-server.
const (
	maxFiles  = 64 // open files and directories
	maxPacket = 256 << 10
	maxPiece  = maxPacket - 1024 // of a read or write
	maxMerged = 1 << 20          // of merged reads or writes
	maxQueued = 2 << 20          // bytes of requests that wait
)

func (f *fileServer) describeLimits([]byte) (byte, []byte, error) {
	return fxpExtendedReply, ssh.Marshal(struct{ Packet, Read, Write, Handles uint64 }{maxPacket, maxPiece, maxPiece, maxFiles}), nil
}

// A request is a packet of the client.
type request struct {
	kind byte
	id   uint32
	body []byte
}

// A requestQueue holds the requests that wait.
type requestQueue struct {
	mu      sync.Mutex
	changed sync.Cond
	waiting []request
	size    int
	err     error // why no more come
	stopped bool
}

func newRequestQueue() *requestQueue {
	u := &requestQueue{}
	u.changed.L = &u.mu
	return u
}

// readRequests reads requests until the client closes its side, or the queue is stopped.
func (u *requestQueue) readRequests(client io.Reader) {
	for {
		q, err := readRequest(client)
		u.mu.Lock()
		for u.size > 0 && u.size+q.queueCost() > maxQueued && !u.stopped {
			u.changed.Wait()
		}
		if err != nil {
			u.err = err
		} else {
			u.waiting, u.size = append(u.waiting, q), u.size+q.queueCost()
		}
		end := err != nil || u.stopped
		u.changed.Broadcast()
		u.mu.Unlock()
		if end {
			return
		}
	}
}

// takeFirst returns the next request, and waits for it.
func (u *requestQueue) takeFirst() (request, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for len(u.waiting) == 0 {
		if u.err != nil {
			return request{}, u.err
		}
		u.changed.Wait()
	}
	return u.removeFirst(), nil
}

// takeIf returns the next request if one waits that fits.
func (u *requestQueue) takeIf(fits func(q request) bool) (request, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.waiting) == 0 || !fits(u.waiting[0]) {
		return request{}, false
	}
	return u.removeFirst(), true
}

// queueCost returns the memory of a request, in bytes.
func (q request) queueCost() int { return len(q.body) + 64 }

func (u *requestQueue) removeFirst() request {
	q := u.waiting[0]
	u.waiting[0] = request{}
	u.waiting, u.size = u.waiting[1:], u.size-q.queueCost()
	u.changed.Broadcast()
	return q
}

// stopReading ends readRequests, unless that waits for the client.
func (u *requestQueue) stopReading() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stopped = true
	u.changed.Broadcast()
}

// readRequest reads a packet.
func readRequest(r io.Reader) (request, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if err == io.ErrUnexpectedEOF {
			err = errPayload
		}
		return request{}, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < 5 || n > maxPacket {
		return request{}, errPayload
	}
	body := make([]byte, n-1)
	if _, err := io.ReadFull(r, body); err != nil {
		return request{}, errPayload
	}
	q := request{kind: head[4], body: body}
	if q.kind != fxpInit {
		q.id, q.body = binary.BigEndian.Uint32(body), body[4:]
	}
	return q, nil
}
