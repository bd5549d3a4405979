package fakemodal

import (
	"bytes"
	"context"
	"io"
	"path"
	"strings"
	"sync"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"

	"github.com/seed46cd37a8/atoll"
)

// A handle is a file that is open. What is written is in the file when it is flushed or
// closed.
type handle struct {
	sb                 *sandbox
	path               string
	readable, writable bool
	atEnd              bool // each write goes to the end

	mu    sync.Mutex
	at    int64
	data  []byte // of one that is writable: what the file has, or will have
	dirty bool   // will have
}

// openFile opens a file, with a mode as Python's.
func (in *fileTask) openFile(ctx context.Context, name, mode string) (*handle, error) {
	verb, err := verbOf(mode)
	if err != nil {
		return nil, err
	}
	more := strings.Contains(mode, "+")
	h := &handle{sb: in.sb, path: name, readable: verb == 'r' || more, writable: verb != 'r' || more, atEnd: verb == 'a'}
	old, err := in.readContent(ctx, name, h.writable && (verb == 'r' || verb == 'a'))
	missing := atoll.KindOf(err) == atoll.ErrNotExist || err == errNoFile
	switch {
	case err == nil && verb == 'x':
		return nil, errExists
	case err != nil && (!missing || verb == 'r'):
		return nil, err
	}
	h.data = old
	if verb == 'w' || missing {
		if err := in.checkParent(ctx, name); err != nil {
			return nil, err
		}
		_, err = in.fs.Write(ctx, name, strings.NewReader(""), atoll.WriteOptions{NoClobber: verb == 'x'})
		return h, err
	}
	return h, nil
}

// verbOf checks a mode, and returns which of r, w, a and x it has.
func verbOf(mode string) (verb byte, err error) {
	for i := range len(mode) {
		switch c := mode[i]; {
		case strings.Count(mode, string(c)) > 1, !strings.ContainsRune("rwaxbt+", rune(c)):
			return 0, fileError{errInvalid.code, "Invalid file mode: " + mode}
		case strings.ContainsRune("rwax", rune(c)) && verb != 0:
			return 0, fileError{errInvalid.code, "must have exactly one of create/read/write/append mode"}
		case strings.ContainsRune("rwax", rune(c)):
			verb = c
		}
	}
	if verb == 0 {
		return 0, fileError{errInvalid.code, "Invalid file mode: " + mode}
	}
	return verb, nil
}

// readContent reads a file, or only whether it is one that can be read.
func (in *fileTask) readContent(ctx context.Context, name string, all bool) ([]byte, error) {
	if err := in.refuseDir(ctx, name); err != nil {
		return nil, err
	}
	r, info, err := in.fs.Read(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if !all {
		return nil, nil
	}
	if info.Size > maxFileSize {
		return nil, errTooBig
	}
	return io.ReadAll(r)
}

// refuseDir refuses a directory.
func (in *fileTask) refuseDir(ctx context.Context, name string) error {
	info, err := in.fs.Stat(ctx, name)
	if err == nil && info.Type == atoll.TypeDirectory {
		return errIsDir
	}
	return err
}

// checkParent checks that a file can be made: the backend would make its directory as well.
func (in *fileTask) checkParent(ctx context.Context, name string) error {
	info, err := in.fs.Stat(ctx, path.Dir(name))
	if err == nil && info.Type != atoll.TypeDirectory && info.Type != atoll.TypeSymlink {
		return errNotDir
	}
	return err
}

// read reads so many bytes, or with n < 0 all that is left.
func (h *handle) read(ctx context.Context, fs atoll.FS, n int64) ([]byte, error) {
	if !h.readable {
		return nil, errBadFile
	}
	if n > maxFileRead {
		return nil, errTooBig
	}
	limit := n
	if n < 0 {
		limit = maxFileRead + 1
	}
	b, err := h.peek(ctx, fs, limit)
	if err != nil {
		return nil, err
	}
	if n < 0 && len(b) > maxFileRead {
		return nil, errTooBig
	}
	h.at += int64(len(b))
	return b, nil
}

// readLine reads to the end of the line.
func (h *handle) readLine(ctx context.Context, fs atoll.FS) ([]byte, error) {
	if !h.readable {
		return nil, errBadFile
	}
	b, err := h.peek(ctx, fs, maxFileRead)
	if err != nil {
		return nil, err
	}
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		b = b[:i+1]
	}
	h.at += int64(len(b))
	return b, nil
}

// peek reads up to n bytes from where the handle is.
func (h *handle) peek(ctx context.Context, fs atoll.FS, n int64) ([]byte, error) {
	if h.writable {
		rest := h.data[min(h.at, int64(len(h.data))):]
		return bytes.Clone(rest[:min(n, int64(len(rest)))]), nil
	}
	r, info, err := fs.Read(ctx, h.path, 0)
	if err != nil {
		return nil, err
	}
	if h.at > 0 { // an offset after the end is refused
		r.Close()
		if r, _, err = fs.Read(ctx, h.path, min(h.at, info.Size)); err != nil {
			return nil, err
		}
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, n))
}

// write writes where the handle is, or at the end.
func (h *handle) write(data []byte) error {
	if !h.writable {
		return errBadFile
	}
	if h.atEnd {
		h.at = int64(len(h.data))
	}
	end := h.at + int64(len(data))
	if end > maxFileSize {
		return errTooBig
	}
	if gap := end - int64(len(h.data)); gap > 0 {
		h.data = append(h.data, make([]byte, gap)...)
	}
	copy(h.data[h.at:], data)
	h.at, h.dirty = end, true
	return nil
}

func (h *handle) seek(ctx context.Context, fs atoll.FS, offset int64, whence pb.SeekWhence) error {
	switch whence {
	case pb.SeekWhence_SEEK_CUR:
		offset += h.at
	case pb.SeekWhence_SEEK_END:
		size := int64(len(h.data))
		if !h.writable {
			r, info, err := fs.Read(ctx, h.path, 0)
			if err != nil {
				return err
			}
			r.Close()
			size = info.Size
		}
		offset += size
	}
	if offset < 0 {
		return errInvalid
	}
	h.at = offset
	return nil
}

// flush writes the file, if it has changed.
func (h *handle) flush(ctx context.Context, fs atoll.FS) error {
	if !h.dirty {
		return nil
	}
	if _, err := fs.Write(ctx, h.path, bytes.NewReader(h.data), atoll.WriteOptions{}); err != nil {
		return err
	}
	h.dirty = false
	return nil
}
