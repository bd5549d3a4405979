package sshd

import (
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed46cd37a8/atoll"
)

// A handle is an open file or directory.
type handle struct {
	name string     // absolute
	file atoll.File // nil for a directory
	opts atoll.OpenOptions

	entries []atoll.FileInfo // of a directory, not read yet
}

// addHandle returns the reply with a new handle.
func (f *fileServer) addHandle(h handle) (byte, []byte, error) {
	f.lastHandle++
	key := strconv.Itoa(f.lastHandle)
	f.handles[key] = h
	return fxpHandle, ssh.Marshal(struct{ Handle string }{key}), nil
}

func (f *fileServer) checkHandles() error {
	if len(f.handles) == maxFiles {
		return statusError{fxFailure, "too many files are open: close some"}
	}
	return nil
}

// findHandle returns the handle that body begins with, and the rest.
func (f *fileServer) findHandle(body []byte) (h handle, rest []byte, err error) {
	key, rest, err := cutString(body)
	if err != nil {
		return handle{}, nil, err
	}
	h, ok := f.handles[key]
	if !ok {
		return handle{}, nil, errHandle
	}
	return h, rest, nil
}

// findFile is findHandle for a file. As with sftp-server, some requests cannot be made
// on a directory's handle.
func (f *fileServer) findFile(body []byte) (h handle, rest []byte, err error) {
	h, rest, err = f.findHandle(body)
	if err == nil && h.file == nil {
		err = errHandle
	}
	return h, rest, err
}

// closeHandles closes all handles. The client has gone, and nobody reads the errors.
func (f *fileServer) closeHandles() {
	for _, h := range f.handles {
		if h.file != nil {
			_ = h.file.Close()
		}
	}
	clear(f.handles)
}

// The flags of an open request.
const (
	fxfRead   = 0x01
	fxfWrite  = 0x02
	fxfAppend = 0x04
	fxfCreat  = 0x08
	fxfTrunc  = 0x10
	fxfExcl   = 0x20
)

// newMask has the permissions that new files and directories do not get, as with the
// usual umask.
const newMask = 0o022

func (f *fileServer) openFile(body []byte) (byte, []byte, error) {
	q, err := parsePayload[struct {
		Name  string
		Flags uint32
		Attrs []byte `ssh:"rest"`
	}](body)
	if err != nil {
		return 0, nil, err
	}
	attrs, err := parseAttributes(q.Attrs)
	if err != nil {
		return 0, nil, err
	}
	if err := f.checkHandles(); err != nil {
		return 0, nil, err
	}
	name, err := f.absoluteName(q.Name)
	if err != nil {
		return 0, nil, err
	}
	write, create := q.Flags&fxfWrite != 0, q.Flags&fxfCreat != 0
	opts := atoll.OpenOptions{
		Read: !write || q.Flags&fxfRead != 0, Write: write, Append: write && q.Flags&fxfAppend != 0, Truncate: write && q.Flags&fxfTrunc != 0,
		Create: create, Exclusive: create && q.Flags&fxfExcl != 0, Mode: 0o666 &^ newMask,
	}
	closed := false // to everybody, which OpenOptions cannot express
	if attrs.Mode != nil {
		opts.Mode = *attrs.Mode &^ newMask
		closed = opts.Mode == 0
	}
	if closed && create {
		file, err := f.openClosed(name, opts)
		return f.addFile(name, opts, file, err)
	}
	file, err := atoll.OpenFile(f.ctx, f.fs, name, opts)
	return f.addFile(name, opts, file, err)
}

// openClosed opens a file that nobody may access if it is new.
func (f *fileServer) openClosed(name string, opts atoll.OpenOptions) (atoll.File, error) {
	fresh := opts
	fresh.Exclusive, fresh.Mode = true, 0o600
	file, err := atoll.OpenFile(f.ctx, f.fs, name, fresh)
	if errors.Is(err, atoll.ErrAlreadyExists) && !opts.Exclusive {
		return atoll.OpenFile(f.ctx, f.fs, name, opts)
	}
	if err == nil {
		none := uint32(0)
		if err = file.Change(f.ctx, atoll.FileChange{Mode: &none}); err != nil {
			_ = file.Close() // the first error counts
		}
	}
	return file, err
}

func (f *fileServer) addFile(name string, opts atoll.OpenOptions, file atoll.File, err error) (byte, []byte, error) {
	if err != nil {
		return 0, nil, f.explainPath(err, name)
	}
	return f.addHandle(handle{name: name, file: file, opts: opts})
}

func (f *fileServer) closeHandle(body []byte) (byte, []byte, error) {
	h, _, err := f.findHandle(body)
	if err != nil {
		return 0, nil, missingHandle(err)
	}
	key, _, _ := cutString(body)
	delete(f.handles, key)
	if h.file != nil {
		err = h.file.Close()
	}
	return 0, nil, err
}

// missingHandle changes the code of errHandle, which for some requests is another one.
func missingHandle(err error) error {
	if err == errHandle {
		return statusError{fxNoFile, errHandle.text}
	}
	return err
}

func (f *fileServer) statHandle(body []byte) (byte, []byte, error) {
	h, _, err := f.findFile(body)
	if err != nil {
		return 0, nil, err
	}
	info, err := h.file.Stat(f.ctx)
	return fxpAttrs, marshalAttributes(info), err
}

func (f *fileServer) changeHandle(body []byte) (byte, []byte, error) {
	h, rest, err := f.findFile(body)
	if err != nil {
		return 0, nil, err
	}
	attrs, err := parseAttributes(rest)
	if err == nil && attrs.Size != nil && !h.opts.Write {
		err = errInvalid
	}
	if err == nil {
		err = f.checkSize(attrs.Size)
	}
	if err != nil {
		return 0, nil, err
	}
	return 0, nil, h.file.Change(f.ctx, attrs.FileChange)
}

// checkSize refuses files beyond the limit.
func (f *fileServer) checkSize(size *int64) error {
	if size != nil && f.maxUpload > 0 && *size > f.maxUpload {
		return statusError{fxFailure, "the file exceeds the upload limit: raise max_upload"}
	}
	return nil
}

func (f *fileServer) syncHandle(body []byte) (byte, []byte, error) {
	h, _, err := f.findFile(body)
	if err != nil {
		return 0, nil, missingHandle(err)
	}
	return 0, nil, h.file.Sync(f.ctx)
}

// A piece is a part of a file to read or write.
type piece struct {
	id     uint32
	handle string
	offset uint64
	length int
	data   []byte // to write
}

// parsePiece parses a read or write.
func parsePiece(q request) (p piece, err error) {
	p.id = q.id
	if q.kind == fxpRead {
		v, err := parsePayload[struct {
			Handle string
			Offset uint64
			Length uint32
		}](q.body)
		p.handle, p.offset, p.length = v.Handle, v.Offset, int(min(v.Length, maxPiece))
		return p, err
	}
	v, err := parsePayload[struct {
		Handle string
		Offset uint64
		Data   string
	}](q.body)
	p.handle, p.offset, p.data, p.length = v.Handle, v.Offset, []byte(v.Data), len(v.Data)
	return p, err
}

// maxPieces is the most requests that are merged.
const maxPieces = 1024

// mergePieces parses q, and takes requests of its kind that continue it from the queue.
func (f *fileServer) mergePieces(q request) (h handle, pieces []piece, length int, err error) {
	first, err := parsePiece(q)
	if err != nil {
		return handle{}, nil, 0, err
	}
	h = f.handles[first.handle]
	pieces, length = []piece{first}, first.length
	for {
		var p piece
		_, ok := f.queue.takeIf(func(next request) bool {
			if next.kind != q.kind {
				return false
			}
			var err error
			p, err = parsePiece(next)
			inOrder := p.offset == first.offset+uint64(length) || h.opts.Append && q.kind == fxpWrite
			return err == nil && p.handle == first.handle && inOrder && length+p.length <= maxMerged && len(pieces) < maxPieces
		})
		if !ok {
			return h, pieces, length, nil
		}
		pieces, length = append(pieces, p), length+p.length
	}
}

// checkAccess returns the error of a read or write if the handle is not open for it.
func (h handle) checkAccess(open bool, purpose string) error {
	switch {
	case h.file == nil:
		return errHandle
	case !open:
		return statusError{fxNoFile, "the file is not open for " + purpose}
	}
	return nil
}

// handleReads performs reads of neighbouring pieces.
func (f *fileServer) handleReads(q request) error {
	h, pieces, length, err := f.mergePieces(q)
	if err != nil {
		return err
	}
	if err := h.checkAccess(h.opts.Read, "reading"); err != nil {
		f.failPieces(pieces, err)
		return nil
	}
	if pieces[0].offset > math.MaxInt64-maxMerged {
		f.failPieces(pieces, errInvalid)
		return nil
	}
	data := make([]byte, length)
	n, err := h.file.ReadAt(f.ctx, data, int64(pieces[0].offset))
	data = data[:n]
	for i, p := range pieces {
		part := data[:min(p.length, len(data))]
		data = data[len(part):]
		switch {
		case len(part) > 0 || p.length == 0 && unlessEOF(err) == nil:
			f.addReply(fxpData, ssh.Marshal(struct {
				ID   uint32
				Data []byte
			}{p.id, part}))
		case unlessEOF(err) != nil:
			f.failPieces(pieces[i:], err)
			return nil
		default:
			f.failPieces(pieces[i:], errEOF)
			return nil
		}
	}
	return nil
}

// handleWrites performs writes of neighbouring pieces.
func (f *fileServer) handleWrites(q request) error {
	h, pieces, length, err := f.mergePieces(q)
	if err != nil {
		return err
	}
	if err := h.checkAccess(h.opts.Write, "writing"); err != nil {
		f.failPieces(pieces, err)
		return nil
	}
	offset := pieces[0].offset
	if h.opts.Append {
		offset = 0
	}
	if offset > math.MaxInt64-maxMerged {
		f.failPieces(pieces, errInvalid)
		return nil
	}
	end := int64(offset) + int64(length)
	if h.opts.Append && f.maxUpload > 0 {
		info, err := h.file.Stat(f.ctx)
		if err != nil {
			f.failPieces(pieces, err)
			return nil
		}
		end = info.Size + int64(length)
	}
	if err := f.checkSize(&end); err != nil {
		f.failPieces(pieces, err)
		return nil
	}
	data := pieces[0].data
	if len(pieces) > 1 {
		data = make([]byte, 0, length)
		for _, p := range pieces {
			data = append(data, p.data...)
		}
	}
	n, err := h.file.WriteAt(f.ctx, data, int64(offset))
	for i, p := range pieces {
		if err != nil && n < p.length {
			f.failPieces(pieces[i:], err)
			return nil
		}
		n -= p.length
		f.addStatus(p.id, nil)
	}
	return nil
}

func (f *fileServer) failPieces(pieces []piece, err error) {
	for _, p := range pieces {
		f.addStatus(p.id, err)
	}
}

// copyData copies a part of a file to another one; the length 0 stands for the rest.
func (f *fileServer) copyData(body []byte) (byte, []byte, error) {
	q, err := parsePayload[struct {
		From           string
		Offset, Length uint64
		To             string
		ToOffset       uint64
	}](body)
	if err != nil {
		return 0, nil, err
	}
	from, to := f.handles[q.From], f.handles[q.To]
	if from.file == nil || to.file == nil || from.name == to.name {
		return 0, nil, statusError{fxFailure, "copy between two open files"}
	}
	if q.Offset > math.MaxInt64/2 || q.ToOffset > math.MaxInt64/2 || q.Length > math.MaxInt64/2 {
		return 0, nil, errInvalid
	}
	left := int64(q.Length)
	if left == 0 {
		info, err := from.file.Stat(f.ctx)
		if err != nil {
			return 0, nil, err
		}
		left = info.Size - int64(q.Offset) // not what a copy to the file itself adds
	}
	if to.opts.Append {
		info, err := to.file.Stat(f.ctx)
		if err != nil {
			return 0, nil, err
		}
		q.ToOffset = uint64(info.Size)
	}
	at, toAt, buf := int64(q.Offset), int64(q.ToOffset), make([]byte, maxMerged)
	for left > 0 {
		n, err := from.file.ReadAt(f.ctx, buf[:min(left, maxMerged)], at)
		if n > 0 {
			end := toAt + int64(n)
			if err := f.checkSize(&end); err != nil {
				return 0, nil, err
			}
			if _, err := to.file.WriteAt(f.ctx, buf[:n], toAt); err != nil {
				return 0, nil, err
			}
		}
		at, toAt, left = at+int64(n), toAt+int64(n), left-int64(n)
		if err != nil {
			return 0, nil, unlessEOF(err)
		}
	}
	return 0, nil, nil
}

func (f *fileServer) openDir(body []byte) (byte, []byte, error) {
	name, err := f.parseName(body)
	if err == nil {
		err = f.checkHandles()
	}
	if err != nil {
		return 0, nil, err
	}
	self, err := f.followLinks(name)
	err = f.explainPath(err, name)
	if err == nil && self.Type != atoll.TypeDirectory {
		err = errNotDir
	}
	if err != nil {
		return 0, nil, err
	}
	list, err := f.fs.List(f.ctx, name, false)
	if err != nil {
		return 0, nil, f.explainPath(err, name)
	}
	open := len(list)
	for _, h := range f.handles {
		open += len(h.entries)
	}
	if open > maxOpenEntries {
		return 0, nil, statusError{fxFailure, "the open directories have too many entries: close some"}
	}
	self.Name = "."
	up := self // above the files that are served, nothing may be known
	if above, err := f.fs.Stat(f.ctx, parentOf(self.Path)); err == nil {
		up = above
	}
	up.Name = ".."
	return f.addHandle(handle{name: name, entries: append([]atoll.FileInfo{self, up}, list...)})
}

const (
	maxEntries     = 100     // of one reply to readdir
	maxOpenEntries = 400_000 // of all open directories of a session, which take 100 MB
)

func (f *fileServer) readDir(body []byte) (byte, []byte, error) {
	key, _, err := cutString(body)
	if err != nil {
		return 0, nil, err
	}
	h, ok := f.handles[key]
	if !ok || h.file != nil {
		return 0, nil, errHandle
	}
	var packed []byte
	n := 0
	for now := time.Now(); n < len(h.entries) && n < maxEntries && len(packed) < maxPacket/2; n++ {
		e := h.entries[n]
		packed = append(packed, marshalName(e.Name, describeFile(e.Name, e, now), marshalAttributes(e))...)
	}
	if h.entries = h.entries[n:]; len(h.entries) == 0 {
		h.entries = nil
	}
	f.handles[key] = h
	if n == 0 {
		return 0, nil, errEOF
	}
	return fxpName, append(binary.BigEndian.AppendUint32(nil, uint32(n)), packed...), nil
}
